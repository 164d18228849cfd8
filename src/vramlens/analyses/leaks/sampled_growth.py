"""Growth over a whole run, from samples: what the ring of events is too short to show.

The memory of a training loop goes up and down within each step. What it never falls below is what
it keeps: the run is cut into windows, and the lowest sample of each is compared with those of the
others (Theil and Sen's slope: the median over all pairs, which a few odd windows do not move).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.failure.failed_request import Outside
from vramlens.analyses.finding import Finding, Place
from vramlens.analyses.leaks.rate import rounded
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.ground.verdict import Verdict
from vramlens.trace import Samples
from vramlens.units import MIB, counted, format_size

_WINDOWS = 16
_FEWEST_WINDOWS = 12
_SAMPLES_A_WINDOW = 3
_MUCH_LONGER = 3
"""Samples that span so many times what the events do tell more of the run than those."""
_LEAST_BYTES = 16 * MIB
_LEAST_SHARE = 0.02
_RISING = 0.9
"""So many of all pairs of windows must rise (of eleven windows in random order, 7 in 100,000
do).
"""
_STILL_RISING = 0.75
"""And of the later half's: what has stopped does not grow."""
_SOON = 10
"""How many times the span that was sampled still counts as an end that is in sight."""
_MINUTE_US = 60_000_000


@dataclass(frozen=True, slots=True)
class SampledGrowth:
    """How what a program keeps grew over its samples.

    Attributes:
        per_unit_bytes: a step, or a minute where steps are not counted.
        unit: "step" or "minute".
        bytes: from the first window to the last.
        first, last: the steps, or the minutes since the first sample, that this is judged over.
        left: how many more units there is room for; None where the room is not known.
    """

    per_unit_bytes: float
    unit: str
    bytes: int
    first: int
    last: int
    left: int | None


def sampled_growth(
    view: Attribution, leaks: tuple[RecordedLeak, ...], outside: Outside, *, failed: bool = False
) -> list[Finding]:
    """The growth that samples show and events cannot, where the ring wrapped or the samples go back
    much further.

    Args:
        leaks: those that the events show: the same memory is not claimed twice.
        failed: whether memory ran out already.
    """
    trace, device = view.trace, view.device
    if trace.samples is None or not _tells_more(view, trace.samples.of(device.device)):
        return []
    growth = growth_of(trace.samples.of(device.device), outside)
    if growth is None:
        return []
    leak = _leak_of(growth, leaks)
    size = growth.bytes - (leak.bytes if leak is not None else 0)
    if size <= 0:
        return []
    rate = f"{format_size(round(growth.per_unit_bytes))} per {growth.unit}"
    span = f"{growth.unit}s {growth.first:,} to {growth.last:,}"
    title = f"Memory grew by about {rate}, {format_size(growth.bytes)} in {span}"
    evidence = [
        f"the lowest value per {growth.unit} rises steadily over {span} (sampled from the "
        "allocator's counters)"
    ]
    place: Place | None = None
    fix: str | None = _fix(growth.unit, rate)
    if leak is not None:
        place, fix = leak.place, leak.fix
        evidence.append(
            "the recorded events, which cover part of the run, show the same growth and its line"
        )
    if growth.left is not None and not failed:
        lasts = counted(rounded(growth.left, 2), growth.unit)
        if growth.left <= _SOON * (growth.last - growth.first):
            title += f": out of memory in about {lasts}"
        else:
            evidence.append(f"at this rate, memory runs out after about {lasts} more")
    return [
        Finding(
            id="sampled_growth",
            verdict=Verdict.LIKELY,
            title=title,
            bytes=size,
            place=place,
            evidence=tuple(evidence),
            fix=fix,
        )
    ]


def _fix(unit: str, rate: str) -> str:
    return (
        "look at the memory in use at the end (vramlens explain FILE --at end --by stack), and "
        f"free what each {unit} adds (about {rate})"
    )


def _leak_of(growth: SampledGrowth, leaks: tuple[RecordedLeak, ...]) -> RecordedLeak | None:
    """The leak among those that events show that is this growth; None without one."""
    if growth.unit != "step":
        return None
    unit_bytes = growth.per_unit_bytes
    for leak in leaks:
        is_tensors = leak.rows is not None and leak.verdict != Verdict.NOT_A_PROBLEM
        if is_tensors and unit_bytes / 2 <= leak.bytes_per_step <= unit_bytes * 2:
            return leak
    return None


def outside_growth(view: Attribution) -> SampledGrowth | None:
    """How memory outside PyTorch's allocator grew: what is neither free on the device nor
    reserved.
    """
    if view.trace.samples is None:
        return None
    samples = view.trace.samples.of(view.device.device)
    is_measured = (samples.free_bytes >= 0) & (samples.reserved_bytes >= 0)
    if not len(samples) or not is_measured.all():
        return None
    inside = samples.free_bytes + samples.reserved_bytes
    return growth_of(replace(samples, allocated_bytes=inside.max() - inside), Outside())


def _tells_more(view: Attribution, samples: Samples) -> bool:
    """Whether the events leave out what the samples have."""
    if len(samples) < _FEWEST_WINDOWS * _SAMPLES_A_WINDOW:
        return False
    device = view.device
    if view.trace.meta.wrapped.get(device.device) or not len(device.events):
        return True
    events_us = int(device.clock_us[-1] - device.clock_us[0])
    return int(samples.time_us[-1] - samples.time_us[0]) > _MUCH_LONGER * max(events_us, 1)


def growth_of(samples: Samples, outside: Outside) -> SampledGrowth | None:
    """How one device's memory grew; None where it did not."""
    is_counted = samples.step >= 0
    by_step = (
        bool(is_counted.all()) and int(samples.step[-1]) - int(samples.step[0]) >= _FEWEST_WINDOWS
    )
    since = (samples.time_us - samples.time_us[0]) / _MINUTE_US
    when = samples.step.astype(np.float64) if by_step else since
    windows = min(_WINDOWS, len(samples) // _SAMPLES_A_WINDOW)
    if windows < _FEWEST_WINDOWS or when[-1] <= when[0]:
        return None
    allocated = samples.allocated_bytes
    parts = np.array_split(np.arange(len(samples)), windows)
    lowest = np.array([part[int(allocated[part].argmin())] for part in parts])
    # The first window has the program's beginning in it: the model is built, the optimizer's state
    # made.
    lowest = lowest[1:]
    times, floors = when[lowest], allocated[lowest].astype(np.float64)
    slope = _slope(times, floors)
    grown = slope * float(times[-1] - times[0])
    if grown < max(_LEAST_BYTES, _LEAST_SHARE * float(np.median(floors))) or not _rises(
        times, floors, slope
    ):
        return None
    return SampledGrowth(
        per_unit_bytes=slope,
        unit="step" if by_step else "minute",
        bytes=round(grown),
        first=int(times[0]),
        last=int(times[-1]),
        left=_left(samples, parts[-1], slope, outside),
    )


def _slope(times: NDArray[np.float64], floors: NDArray[np.float64]) -> float:
    """The median slope over all pairs of windows; 0.0 where time stands still."""
    apart, up = _pairs(times), _pairs(floors)
    slopes = up[apart > 0] / apart[apart > 0]
    return float(np.median(slopes)) if len(slopes) else 0.0


def _rises(times: NDArray[np.float64], floors: NDArray[np.float64], slope: float) -> bool:
    """Whether it goes up throughout, and still does at the end."""
    half = len(floors) // 2
    still = (_pairs(floors[half:]) > 0).mean() >= _STILL_RISING and _slope(
        times[half:], floors[half:]
    ) >= slope / 3
    return bool((_pairs(floors) > 0).mean() >= _RISING and still)


def _pairs(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of every two values the later minus the earlier one."""
    earlier, later = np.triu_indices(len(values), 1)
    return np.asarray(values[later] - values[earlier])


def _left(samples: Samples, last: NDArray[np.int64], slope: float, outside: Outside) -> int | None:
    """How many more units until the highest of the latest samples meets the limit; None where
    that is unknown.
    """
    highest = int(samples.allocated_bytes[last].max())
    rooms = [
        limit - highest for limit in (outside.limit_bytes, outside.total_bytes) if limit is not None
    ]
    free, reserved = samples.free_bytes[last], samples.reserved_bytes[last]
    both = (free >= 0) & (reserved >= 0)
    if both.any():  # what PyTorch has cached and what the device has free
        rooms.append(int((free + reserved)[both].min()) - highest)
    return max(0, int(float(min(rooms)) / slope)) if rooms else None
