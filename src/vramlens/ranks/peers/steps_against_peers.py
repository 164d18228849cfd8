"""Steps of ranks beside each other: whether a rank holds more in all of its steps, or had one
large step by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vramlens.ranks.rank_summary import RankSummary

_VARIES = 0.02
"""A job's batches vary when the steps of its usual rank differ by so much."""
_CERTAIN = 5.0
"""So many standard errors of the mean difference a rank must be above its peers, step by step."""
_FEWEST_STEPS = 4
_OUTLIER = 1.25
"""So many times what any other rank ever needed is worth acting on, even where it happened once."""
_BY_CHANCE = 0.05
"""Chance that is small enough: so often it puts all of the largest steps on one rank."""

_WINDOWS = 4
"""Of steps, in which an excess rises from each to the next."""
_LITTLE = 0.25
"""Of the last window's excess: that of the first, of what grows."""
_ALIKE = 0.1
"""Two excesses are the same when they differ by so little."""
_MOST_CELLS = 1 << 24
"""Of more steps of all ranks together, only so many are looked at, evenly spaced."""


class PeerStepPeaks:
    """The peaks of the steps of some ranks, to set each of them beside the others: as quick for the
    last as for all.

    The first step is left out: optimizer state is not there yet.
    """

    def __init__(self, ranks: Sequence[RankSummary]) -> None:
        self.ranks = ranks
        stepping = [summary for summary in ranks if len(summary.step_peaks) > 2]
        self._row = {id(summary): row for row, summary in enumerate(stepping)}
        self._count = min((len(summary.step_peaks) for summary in stepping), default=0)
        self._every = max(1, -(-len(stepping) * self._count // _MOST_CELLS))
        width = len(range(1, self._count, self._every))
        peaks = np.array([self._peaks_of(summary) for summary in stepping], np.float64).reshape(
            len(stepping), width
        )
        self._highest = peaks.max(axis=1, initial=0)
        lowest = peaks.min(axis=1, initial=np.inf)
        self._variation = (self._highest - lowest) / np.maximum(self._highest, 1)
        self._ascending_variation = np.sort(self._variation)
        self._ascending = np.sort(peaks, axis=0)

    @property
    def vary(self) -> bool:
        """True if the usual rank's steps are apart by more than equal batches are."""
        return bool(len(self._row)) and float(np.median(self._variation)) >= _VARIES

    def is_only_one_to_vary(self, summary: RankSummary) -> bool:
        """True if the batches of a rank, one of these, vary from step to step and its peers' do
        not.
        """
        row = self._row.get(id(summary))
        if row is None or len(self._row) < 2:
            return False
        return bool(self._usual_variation(row) < _VARIES <= self._variation[row])

    def is_chance(self, summary: RankSummary, least_bytes: float) -> bool:
        """True if a rank's higher peak comes of batches that vary from step to step, on every rank
        alike.

        Steps are compared by their number.

        Args:
            summary: the rank, one of these.
            least_bytes: what counts as a difference.
        """
        row = self._row.get(id(summary))
        if row is None or len(self._row) < 2:
            return not _is_even(summary, self.ranks)
        if self._usual_variation(row) < _VARIES:
            return False
        if self._count < _FEWEST_STEPS:
            return True
        if self._highest[row] >= _OUTLIER * np.delete(self._highest, row).max():
            return False
        peaks = np.array(self._peaks_of(summary), np.float64)
        above = self._steps_above_all(row, peaks, least_bytes)
        if above and len(self._row) ** (1.0 - above) <= _BY_CHANCE:
            return False
        excess = peaks - self._median_without(peaks)
        error = float(excess.std(ddof=1)) / len(excess) ** 0.5
        return bool(excess.mean() < max(least_bytes, _CERTAIN * error))

    def rises(self, summary: RankSummary) -> bool:
        """True if what a rank, one of these, holds more than the others rises to the end, and was
        little at first.
        """
        row = self._row.get(id(summary))
        if row is None or len(self._row) < 2 or self._count <= _WINDOWS * 2:
            return False
        peaks = np.array(self._peaks_of(summary), np.float64)
        excess = peaks - self._median_without(peaks)
        levels = [float(np.median(window)) for window in np.array_split(excess, _WINDOWS)]
        is_ascending = all(before < after for before, after in pairwise(levels))
        return is_ascending and max(levels[0], 0.0) < _LITTLE * levels[-1]

    def _usual_variation(self, row: int) -> float:
        """The median variation of all ranks but one."""
        ascending = self._ascending_variation
        own_place = int(np.searchsorted(ascending, self._variation[row]))
        count = len(ascending) - 1
        middle = [(count - 1) // 2, count // 2]
        return float(sum(ascending[n + (n >= own_place)] for n in middle)) / 2

    def has_step_above_all(self, summary: RankSummary, least_bytes: float) -> bool:
        """True if a rank, one of these, once needed more than any other ever did, where these agree
        on how much that is.
        """
        row = self._row.get(id(summary))
        if row is None or self._count < _FEWEST_STEPS:
            return False
        peaks = np.array(self._peaks_of(summary), np.float64)
        return self._steps_above_all(row, peaks, least_bytes) > 0

    def _steps_above_all(self, row: int, peaks: NDArray[np.float64], least_bytes: float) -> int:
        """The number of a rank's steps that need more than any of another rank; 0 where the highest
        steps of the others are apart, so that the next rank's might be as high by chance.
        """
        others = np.delete(self._highest, row)
        if len(others) < 2:
            return 0
        apart = float(np.ptp(others))
        if apart > _VARIES * others.max():
            return 0
        return int((peaks > others.max() + max(least_bytes, _CERTAIN * apart)).sum())

    def _peaks_of(self, summary: RankSummary) -> tuple[int, ...]:
        return summary.step_peaks[1 : self._count : self._every]

    def _median_without(self, peaks: NDArray[np.float64]) -> NDArray[np.float64]:
        """The median of each step over the other ranks."""
        count = len(self._ascending) - 1
        removed = (self._ascending < peaks).sum(axis=0)  # where this rank's own peak stands
        columns = np.arange(len(peaks))

        def nth_smallest(n: int) -> NDArray[np.float64]:
            return np.asarray(self._ascending[n + (n >= removed), columns])

        return (nth_smallest((count - 1) // 2) + nth_smallest(count // 2)) / 2


def _is_even(summary: RankSummary, peers: Sequence[RankSummary]) -> bool:
    """Without steps: whether what this rank's lines hold on average is as much larger as what
    they hold at most.
    """
    peer_lines = {
        (line.place, line.hints): line
        for peer in peers
        if peer is not summary
        for line in peer.lines
    }
    peak = peer_peak = total = peer_total = 0
    for line in summary.lines:
        peer_line = peer_lines.get((line.place, line.hints))
        if peer_line is None or line.static or line.allocations != peer_line.allocations:
            continue
        peak += line.peak_bytes
        peer_peak += peer_line.peak_bytes
        total += line.total_bytes
        peer_total += peer_line.total_bytes
    more_at_peak = peak / max(1, peer_peak) - 1
    more_in_all = total / max(1, peer_total) - 1
    return abs(more_in_all - more_at_peak) <= _ALIKE * abs(more_at_peak)
