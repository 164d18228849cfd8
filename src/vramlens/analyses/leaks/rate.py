"""Rates: how much each step leaves behind, how sure that is, and when the memory will be full.

Theil and Sen's slope (the median over all pairs of steps) of what the steps had left behind by
then: a few odd steps do not move it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.failure.failed_request import Outside
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.leak.leak import FAR_STEPS, least_bytes_per_step
from vramlens.units import counted

_MOST_POINTS = 300
_APART = 0.5
"""Rates over so much of the time that was seen, or more, give the range that is expected to go
on.
"""
_OUTSIDE_PYTORCH = (
    "nccl",
    "this_process_other",
    "other_processes",
    "outside_pytorch",
    "driver_reserved",
    "unknown",
)


@dataclass(frozen=True, slots=True)
class Rate:
    """Bytes a step: the median slope, and the lowest and highest seen over half of the steps or
    more.
    """

    bytes: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class TimeToFull:
    """When the memory will be full, if the growth goes on as it was.

    Attributes:
        steps: about how many more steps there is room for.
        low, high: the range.
        limit_bytes: what the process may reserve.
        room_bytes: what is left of it above the highest of the latest steps.
    """

    steps: int
    low: int
    high: int
    limit_bytes: int
    room_bytes: int


def rate_of(by_step: NDArray[np.int64]) -> Rate:
    """The rate of what each step of a run left behind, in bytes; the first step of it left
    something.
    """
    left_so_far = np.cumsum(by_step).astype(np.float64)
    filled = np.flatnonzero(by_step)
    if len(filled) < 3:
        mean_bytes = float(by_step.sum()) / max(len(by_step), 1)
        return Rate(mean_bytes, mean_bytes, mean_bytes)
    if len(filled) < 0.9 * len(by_step):
        # Steps of a staircase: from one edge to the next, so that no part of a period counts as a
        # whole one.
        times, left_so_far = filled.astype(np.float64), left_so_far[filled]
    else:
        times = np.arange(len(by_step), dtype=np.float64)
    if len(times) > _MOST_POINTS:
        chosen = np.linspace(0, len(times) - 1, _MOST_POINTS).astype(np.int64)
        times, left_so_far = times[chosen], left_so_far[chosen]
    earlier, later = np.triu_indices(len(times), 1)
    apart = times[later] - times[earlier]
    slopes = (left_so_far[later] - left_so_far[earlier]) / apart
    far = slopes[apart >= _APART * apart.max()]
    return Rate(float(np.median(slopes)), float(far.min()), float(far.max()))


def prediction_of(
    rates: list[Rate], highest_bytes: int, reserved_bytes: int, limit_bytes: int
) -> TimeToFull | None:
    """When the memory will be full; None where nothing grows.

    Args:
        rates: of all that grows, in bytes that the allocator takes.
        highest_bytes: the most that was allocated in the latest steps.
        reserved_bytes: what is reserved; of what is cached there, perhaps not all can be used.
        limit_bytes: what the process may reserve.
    """
    rate, fastest, slowest = (
        sum(getattr(each_rate, name) for each_rate in rates) for name in ("bytes", "high", "low")
    )
    if rate <= 0:
        return None
    most_room = max(0, limit_bytes - highest_bytes)
    idle = max(0, min(reserved_bytes, limit_bytes) - highest_bytes)
    least_room = max(0, most_room - idle // 2)
    middle = (most_room + least_room) / 2
    return TimeToFull(
        steps=int(middle / rate),
        low=max(0, int(least_room / max(fastest, rate)) - 1),
        high=int(most_room / max(min(slowest, rate), rate / 10)) + 1,
        limit_bytes=limit_bytes,
        room_bytes=most_room,
    )


def predicted(
    view: Attribution,
    leaks: tuple[RecordedLeak, ...],
    outside: Outside,
    event: int | None = None,
) -> TimeToFull | None:
    """When the memory will be full, if what is sure to grow goes on; None where that, or the
    limit, is not known.
    """
    growing = [leak for leak in leaks if leak.sure and leak.taken_per_step > 0]
    limit = _limit(outside)
    if not growing or limit is None or not len(view.steps):
        return None
    device, steps = view.device, view.steps
    last = len(steps) - 1 if event is None else int(steps.of(np.array([event]))[0])
    end = int(steps.ends[last]) if event is None else event + 1
    first = int(steps.starts[max(0, last - max(3, last // 4))])
    # Rounding of blocks: what is allocated goes up and down as what is requested does.
    rounding = device.allocated.peak_bytes / max(device.requested.peak_bytes, 1)
    highest = round(int(device.requested_curve[first:end].max()) * max(1.0, rounding))
    reserved = int(device.reserved_curve[end - 1])
    rates = [
        Rate(
            leak.taken_per_step,
            leak.low * leak.taken_per_step / max(leak.bytes_per_step, 1),
            leak.high * leak.taken_per_step / max(leak.bytes_per_step, 1),
        )
        for leak in growing
    ]
    return prediction_of(rates, highest, reserved, limit)


def least_that_matters(view: Attribution, outside: Outside) -> int:
    """From how many bytes per step on a leak matters on a device, by what the process may reserve
    there.
    """
    limit = _limit(outside)
    return least_bytes_per_step(limit, view.device.reserved.peak_bytes, len(view.steps))


def _limit(outside: Outside) -> int | None:
    """What the process may reserve at most; None where unknown."""
    limits = [] if outside.limit_bytes is None else [outside.limit_bytes]
    if outside.total_bytes is not None:
        parts = () if outside.ledger is None else outside.ledger.parts
        other_bytes = sum(part.bytes for part in parts if part.kind in _OUTSIDE_PYTORCH)
        limits.append(max(0, outside.total_bytes - other_bytes))
    return min(limits, default=None)


def time_to_full_text(prediction: TimeToFull) -> str:
    """``out of memory in about 61 steps (50 to 72)``."""
    low, middle, high = (
        rounded(number) for number in (prediction.low, prediction.steps, prediction.high)
    )
    if prediction.low > FAR_STEPS:
        return f"room for more than {rounded(prediction.low):,} steps"
    if high <= 1:
        return "out of memory within the next step or two"
    span = f" ({low:,} to {high:,})" if low < high else ""
    return f"out of memory in about {counted(middle, 'step')}{span}"


def rounded(number: int, digits: int = 3) -> int:
    """The number with so many telling digits: it is an estimate."""
    scale: int = 10 ** max(0, len(str(number)) - digits)
    return number // scale * scale
