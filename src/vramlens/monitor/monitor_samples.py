"""A sample: what the monitor thread sees at one moment; and all moments in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

_MOST = 4096


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One GPU at one moment, in bytes; None is what nobody told.

    Attributes:
        device: CUDA's index in this process.
        total_bytes, free_bytes: as the driver says, of all processes.
        allocated_bytes, reserved_bytes, peak_bytes: PyTorch's counters in this process; None before
            it uses the GPU.
        retries, failures: how often PyTorch emptied its cache to go on, and failed.
        growth_bytes: what a step leaves behind; None while that is open, or where nothing grows.
        steps_left: about how many steps until memory runs out.
    """

    device: int
    name: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_bytes: int | None = None
    retries: int | None = None
    failures: int | None = None
    growth_bytes: int | None = None
    steps_left: int | None = None

    @property
    def used_bytes(self) -> int | None:
        """All that is not free, of all processes."""
        return (
            None
            if self.total_bytes is None or self.free_bytes is None
            else self.total_bytes - self.free_bytes
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment; ``time_us`` is microseconds since 1970, ``step`` the steps that have ended,
    ``step_us`` the microseconds that one takes of late.
    """

    time_us: int
    step: int
    devices: tuple[DeviceSample, ...]
    rss_bytes: int | None = None
    host_total_bytes: int | None = None
    host_available_bytes: int | None = None
    pinned_bytes: int | None = None
    step_us: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        return asdict(self)


class MonitorSamples:
    """Samples in bounded memory: when there are 4,096, every second one is dropped, and from then
    on every second kept.

    Attributes:
        count: how many there have been.
    """

    def __init__(self) -> None:
        self._kept: list[Sample] = []
        self._pace = 1
        self.count = 0

    def add(self, sample: Sample) -> None:
        """Keeps a sample, or not, where they have become many."""
        if self.count % self._pace == 0:
            self._kept.append(sample)
        self.count += 1
        if len(self._kept) > _MOST:
            self._pace *= 2
            self._kept = self._kept[::2]

    def __iter__(self) -> Iterator[Sample]:
        return iter(list(self._kept))

    def __len__(self) -> int:
        return len(self._kept)
