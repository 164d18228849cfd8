"""Rates: how much each step leaves behind, how sure that is, and when the memory will be full.

Theil and Sen's slope (the median over all pairs of steps) of what the steps had left behind by
then: a few odd steps do not move it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MOST_POINTS = 300
_APART = 0.5
"""Rates over so much of the time that was seen, or more, give the range that is expected to go
on.
"""


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
