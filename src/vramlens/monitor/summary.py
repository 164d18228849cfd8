"""A summary: what a monitor has seen, in figures and in a few lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from vramlens.foreign_text import text_of
from vramlens.monitor.alerts.alerts import Alert
from vramlens.monitor.monitor_samples import DeviceSample
from vramlens.units import counted, format_size

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """One GPU over the monitored time, in bytes; None is what nobody told.

    Attributes:
        peak_allocated_bytes, peak_reserved_bytes: PyTorch's in this process: the highest counter
            that was read. Between two samples the allocator's own peak counter is taken, so it
            misses nothing, unless the program resets it; a peak that was there before the monitor
            began counts only if it was passed. The reserved peak is sampled.
        most_used_bytes: the most that all processes together used, sampled.
        least_free_bytes: the least that was free, sampled.
        growth_bytes: what a step leaves behind; None where nothing grows steadily, or too few steps
            were marked.
        steps_left: about how many steps until memory runs out at that rate.
    """

    device: int
    name: str | None
    total_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    most_used_bytes: int | None
    least_free_bytes: int | None
    retries: int
    failures: int
    growth_bytes: int | None
    steps_left: int | None


@dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """The monitored time; printed it is a few lines.

    Attributes:
        seconds: how long it was.
        samples, steps: how many there were.
        peak_rss_bytes, peak_pinned_bytes: of this process on the host, sampled.
        alerts: what was set off, in order; at most the last 100.
        cpu_seconds: the processor time that the monitor's thread took.
        notes: what could not be watched, in sentences.
    """

    seconds: float
    samples: int
    steps: int
    devices: tuple[DeviceSummary, ...]
    peak_rss_bytes: int | None
    peak_pinned_bytes: int | None
    alerts: tuple[Alert, ...]
    cpu_seconds: float
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return text_of(_lines(self))

    def __repr__(self) -> str:
        return str(self)


class Extremes:
    """The highest and lowest figures of one GPU so far."""

    def __init__(self, first: DeviceSample) -> None:
        self._first_peak = first.peak_bytes or 0
        self._last = first
        self._allocated: int | None = None
        self._reserved: int | None = None
        self._used: int | None = None
        self._free: int | None = None
        self._retries = (first.retries or 0, first.failures or 0)
        self.add(first)

    def add(self, now: DeviceSample) -> None:
        """Takes a sample into account."""
        self._last = now
        self._allocated = _most(self._allocated, now.allocated_bytes)
        if now.peak_bytes is not None:
            if now.peak_bytes < self._first_peak:
                self._first_peak = 0  # the program has reset it: all of it is of the monitored time
            if now.peak_bytes > self._first_peak:
                self._allocated = _most(self._allocated, now.peak_bytes)
        self._reserved = _most(self._reserved, now.reserved_bytes)
        self._used = _most(self._used, now.used_bytes)
        self._free = min(
            (size for size in (self._free, now.free_bytes) if size is not None), default=None
        )

    def summary(self) -> DeviceSummary:
        """All of it."""
        now = self._last
        return DeviceSummary(
            device=now.device,
            name=now.name,
            total_bytes=now.total_bytes,
            peak_allocated_bytes=self._allocated,
            peak_reserved_bytes=self._reserved,
            most_used_bytes=self._used,
            least_free_bytes=self._free,
            retries=max(0, (now.retries or 0) - self._retries[0]),
            failures=max(0, (now.failures or 0) - self._retries[1]),
            growth_bytes=now.growth_bytes,
            steps_left=now.steps_left,
        )


def _most(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else max(first, second)


def _lines(summary: Summary) -> Iterator[str]:
    scope = f"{counted(summary.samples, 'sample')} in {summary.seconds:,.1f} s"
    yield f"Monitored: {scope}" + (f", {counted(summary.steps, 'step')}" if summary.steps else "")
    for gpu in summary.devices:
        yield from _device_lines(gpu)
    if summary.peak_rss_bytes is not None:
        pinned = (
            f", {format_size(summary.peak_pinned_bytes)} pinned"
            if summary.peak_pinned_bytes
            else ""
        )
        yield f"Host: at most {format_size(summary.peak_rss_bytes)} in this process{pinned}"
    for alert in summary.alerts[-_SHOWN:]:
        yield f"Alert: {alert.text}"
    if len(summary.alerts) > _SHOWN:
        yield f"and {counted(len(summary.alerts) - _SHOWN, 'earlier alert')}"
    yield from summary.notes


def _device_lines(gpu: DeviceSummary) -> Iterator[str]:
    name = f"GPU {gpu.device} ({gpu.name})" if gpu.name else f"GPU {gpu.device}"
    parts = _figures_in_words(gpu)
    yield (
        f"{name}: {', '.join(parts) or 'not used by this process, and the driver reports nothing'}"
    )
    if gpu.growth_bytes:
        growth = f"  grows by {format_size(gpu.growth_bytes)} per step"
        if gpu.steps_left is not None:
            growth += f"; it will run out in about {counted(gpu.steps_left, 'step')}"
        yield f"{growth}. To find what keeps it: vramlens leaks"
    if gpu.retries or gpu.failures:
        times, requests = counted(gpu.retries, "time"), counted(gpu.failures, "request")
        yield f"  PyTorch emptied its cache {times} to continue; {requests} failed"


def _figures_in_words(gpu: DeviceSummary) -> list[str]:
    parts = []
    if gpu.peak_allocated_bytes is not None:
        parts.append(f"peak {format_size(gpu.peak_allocated_bytes)} allocated")
    if gpu.peak_reserved_bytes is not None:
        parts.append(f"{format_size(gpu.peak_reserved_bytes)} reserved")
    if gpu.most_used_bytes is not None and gpu.total_bytes is not None:
        parts.append(
            f"all processes at most {format_size(gpu.most_used_bytes)} of"
            f" {format_size(gpu.total_bytes)}"
        )
    if gpu.least_free_bytes is not None:
        parts.append(f"at least {format_size(gpu.least_free_bytes)} free")
    return parts
