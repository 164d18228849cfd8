"""Growth: what each step leaves behind, from the bytes that live when steps end, while the
program runs.
"""

from __future__ import annotations

from dataclasses import dataclass

_KEPT = 128
_FEWEST = 12
_AGREE = 0.5
_SURE = 4.0
"""Twelve steps that rise without exception reach 4.5; noise reaches 4 once in some thirty
thousand judgements.
"""


@dataclass(frozen=True, slots=True)
class GrowthRate:
    """The growth of memory.

    Attributes:
        bytes_per_step: the Theil-Sen slope: the median of the slopes between all pairs, which a
            spike does not move.
        first_step, last_step: over which steps.
    """

    bytes_per_step: int
    first_step: int
    last_step: int


class StepGrowth:
    """Follows one device. Keeps at most 128 steps: of a long run every second, fourth, eighth and
    so on.

    The rate is judged over the newer half of what is kept: a program's start, where optimizers get
    their state, and caches that fill once do not count for long. It is a rate only where the floor
    rises from each third of that half to the next, where the later half of it rises at least half
    as fast as the earlier, and where chance alone would
    hardly ever rise so: a saw-tooth, a cache that fills and noise are not growth.
    """

    def __init__(self) -> None:
        # One list of pairs: one thread adds while another judges.
        self._points: list[tuple[int, int]] = []
        self._pace = 1
        self._judged_at = -1
        self._rate: GrowthRate | None = None

    def add(self, step: int, size_bytes: int) -> None:
        """Notes what lives when a step has ended. A number below the last one means that they
        are counted anew.
        """
        last = self._points[-1][0] if self._points else -1
        if step < last:
            self._points, self._pace = [], 1
        elif step == last or (self._points and step % self._pace):
            return
        self._points.append((step, size_bytes))
        if len(self._points) > _KEPT:
            self._pace *= 2
            self._points = [point for point in self._points if point[0] % self._pace == 0]

    def rate(self) -> GrowthRate | None:
        """The bytes that a step leaves behind; None while there are too few steps, or where nothing
        grows steadily.
        """
        points = self._points[:]
        if points and points[-1][0] != self._judged_at:
            self._judged_at = points[-1][0]
            newer = points[-max(_FEWEST, len(points) // 2) :]
            self._rate = _rate([step for step, _ in newer], [size for _, size in newer])
        return self._rate


def _rate(steps: list[int], sizes: list[int]) -> GrowthRate | None:
    count = len(steps)
    if count < _FEWEST:
        return None
    third, half = count // 3, count // 2
    floors = [min(sizes[at : at + third]) for at in (0, third, count - third)]
    if not floors[0] < floors[1] < floors[2]:
        return None
    first, second = _slope(steps[:half], sizes[:half]), _slope(steps[half:], sizes[half:])
    slope = _slope(steps, sizes)
    if slope <= 0 or second < _AGREE * max(first, 0) or _surely_rises(sizes) < _SURE:
        return None
    return GrowthRate(round(slope), steps[0], steps[-1])


def _surely_rises(sizes: list[int]) -> float:
    """By how many standard deviations more pairs rise than fall, were it chance alone (Mann
    1945, Kendall).
    """
    count = len(sizes)
    score = sum(
        (later > size) - (later < size)
        for at, size in enumerate(sizes)
        for later in sizes[at + 1 :]
    )
    return score / float((count * (count - 1) * (2 * count + 5) / 18) ** 0.5)


def _slope(steps: list[int], sizes: list[int]) -> float:
    """The Theil-Sen estimate (Sen 1968): at most 64 steps are 2,016 pairs, less than a
    millisecond.
    """
    slopes = sorted(
        (sizes[later] - sizes[at]) / (steps[later] - steps[at])
        for later in range(1, len(steps))
        for at in range(later)
    )
    middle = len(slopes) // 2
    return slopes[middle] if len(slopes) % 2 else (slopes[middle - 1] + slopes[middle]) / 2


def steps_left(rate: GrowthRate | None, room_bytes: int | None) -> int | None:
    """About how many steps until the room is used up at this rate."""
    if rate is None or room_bytes is None or rate.bytes_per_step <= 0:
        return None
    return max(0, room_bytes) // rate.bytes_per_step
