"""Steps of ranks beside each other: whether a rank holds more in all of its steps, or had one
large step by chance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vramlens.ranks.summary import RankSummary

_VARIES = 0.02
"""A job's batches vary when the steps of its usual rank differ by so much."""
_CERTAIN = 5.0
"""So many standard errors of the mean difference a rank must be above its peers, step by step."""
_FEWEST_STEPS = 4
_OUTLIER = 1.25
"""So many times what any other rank ever needed is worth acting on, even where it happened once."""

_ALIKE = 0.1
"""Two excesses are the same when they differ by so little."""


_MOST_CELLS = 1 << 24
"""Of more steps of all ranks together, only so many are looked at, evenly spaced."""


class StepPeaks:
    """The peaks of the steps of some ranks, to set each of them beside the others: as quick for the
    last as for all.

    The first step is left out: optimizer state is not there yet.
    """

    def __init__(self, ranks: Sequence[RankSummary]) -> None:
        self.ranks = ranks
        known = [one for one in ranks if len(one.step_peaks) > 2]
        self._row = {id(one): row for row, one in enumerate(known)}
        self._count = min((len(one.step_peaks) for one in known), default=0)
        self._every = max(1, -(-len(known) * self._count // _MOST_CELLS))
        width = len(range(1, self._count, self._every))
        peaks = np.array([self._of(one) for one in known], np.float64).reshape(len(known), width)
        self._varies = (
            np.ptp(peaks, axis=1) / np.maximum(peaks.max(axis=1), 1) if peaks.size else np.zeros(0)
        )
        self._most = peaks.max(axis=1) if peaks.size else np.zeros(0)
        self._ascending = np.sort(peaks, axis=0)

    def is_chance(self, own: RankSummary, least_bytes: float) -> bool:
        """Whether a rank's higher peak comes of batches that vary from step to step, on every rank
        alike.

        Steps are compared by their number.

        Args:
            own: the rank, one of these.
            least_bytes: what counts as a difference.
        """
        row = self._row.get(id(own))
        if row is None or len(self._row) < 2:
            return not _is_even(own, self.ranks)
        mine = np.array(self._of(own), np.float64)
        if max(float(np.median(np.delete(self._varies, row))), self._varies[row]) < _VARIES:
            return False
        if self._count < _FEWEST_STEPS:
            return True
        if self._most[row] >= _OUTLIER * np.delete(self._most, row).max():
            return False
        more = mine - self._median_without(mine)
        error = float(more.std(ddof=1)) / len(more) ** 0.5
        return bool(more.mean() < max(least_bytes, _CERTAIN * error))

    def _of(self, one: RankSummary) -> tuple[int, ...]:
        return one.step_peaks[1 : self._count : self._every]

    def _median_without(self, mine: NDArray[np.float64]) -> NDArray[np.float64]:
        """The median of each step over the other ranks."""
        left = len(self._ascending) - 1
        gone = (self._ascending < mine).sum(axis=0)  # where this rank's own value stands
        columns = np.arange(len(mine))
        low, high = ((middle + (middle >= gone)) for middle in ((left - 1) // 2, left // 2))
        return np.asarray((self._ascending[low, columns] + self._ascending[high, columns]) / 2)


def _is_even(own: RankSummary, peers: Sequence[RankSummary]) -> bool:
    """Without steps: whether what this rank's lines hold on average is as much larger as what
    they hold at most.
    """
    others = {
        (line.place, line.hints): line for one in peers if one is not own for line in one.lines
    }
    pairs = [
        (line, others[key]) for line in own.lines if (key := (line.place, line.hints)) in others
    ]
    pairs = [(a, b) for a, b in pairs if a.allocations == b.allocations and not a.static]
    peak = sum(a.peak_bytes for a, _ in pairs) / max(1, sum(b.peak_bytes for _, b in pairs)) - 1
    mean = sum(a.total_bytes for a, _ in pairs) / max(1, sum(b.total_bytes for _, b in pairs)) - 1
    return abs(mean - peak) <= _ALIKE * abs(peak)
