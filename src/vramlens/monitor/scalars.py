"""The scalars that a monitor gives to experiment trackers: ten at most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramlens.monitor.monitor_samples import DeviceSample, Sample
from vramlens.units import GIB, MIB

if TYPE_CHECKING:
    from vramlens.monitor.sampler import Monitor


def scalars(monitor: Monitor) -> dict[str, float]:
    """The newest sample as named scalars; those that nobody knows are left out. Takes a sample
    where there is none.

    ``memory/allocated_gib``, ``reserved_gib``, ``peak_allocated_gib`` (PyTorch's counter, since its
    last reset), ``device_used_gib`` and ``device_free_gib`` (all processes), ``host_rss_gib``,
    ``host_pinned_gib``, ``growth_mib_per_step``, ``steps_left`` and ``alloc_retries``. Of several
    GPUs it is the one where this program holds most.
    """
    sample = monitor.latest or monitor.sample()
    return {} if sample is None else scalars_of(sample)


def scalars_of(sample: Sample) -> dict[str, float]:
    """One sample as named scalars."""
    figures: dict[str, tuple[int | None, int]] = {}
    device = fullest(sample)
    if device is not None:
        figures["allocated_gib"] = device.allocated_bytes, GIB
        figures["reserved_gib"] = device.reserved_bytes, GIB
        figures["peak_allocated_gib"] = device.peak_bytes, GIB
        figures["device_used_gib"] = device.used_bytes, GIB
        figures["device_free_gib"] = device.free_bytes, GIB
        figures["growth_mib_per_step"] = device.growth_bytes, MIB
        figures["steps_left"] = device.steps_left, 1
        figures["alloc_retries"] = device.retries, 1
    figures["host_rss_gib"] = sample.rss_bytes, GIB
    figures["host_pinned_gib"] = sample.pinned_bytes, GIB
    return {
        f"memory/{name}": size / unit for name, (size, unit) in figures.items() if size is not None
    }


def fullest(sample: Sample) -> DeviceSample | None:
    """The GPU on which this program holds most; before it holds any, the first."""
    return max(
        sample.devices, key=lambda one: (one.allocated_bytes or 0, -one.device), default=None
    )
