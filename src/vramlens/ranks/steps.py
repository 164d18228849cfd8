"""Steps of ranks beside each other: whether a rank holds more in all of its steps, or had one large step by chance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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


def is_chance(own: RankSummary, peers: Sequence[RankSummary], least_bytes: float) -> bool:
    """Whether a rank's higher peak comes of batches that vary from step to step, on every rank alike.

    Steps are compared by their number. The first is left out: optimizer state is not there yet.

    Args:
        own: the rank.
        peers: the ranks that it is compared with; it may be among them.
        least_bytes: what counts as a difference.
    """
    others = [one.step_peaks for one in peers if one is not own and len(one.step_peaks) > 2]
    if not others or len(own.step_peaks) < 3:
        return not _is_even(own, peers)
    count = min(len(own.step_peaks), *(len(steps) for steps in others))
    theirs = np.array([steps[1:count] for steps in others], np.float64)
    mine = np.array(own.step_peaks[1:count], np.float64)
    if max(float(np.median(np.ptp(theirs, axis=1) / theirs.max(axis=1))), np.ptp(mine) / mine.max()) < _VARIES:
        return False
    if len(mine) + 1 < _FEWEST_STEPS:
        return True
    if mine.max() >= _OUTLIER * theirs.max():
        return False
    more = mine - np.median(theirs, axis=0)
    error = float(more.std(ddof=1)) / len(more) ** 0.5
    return bool(more.mean() < max(least_bytes, _CERTAIN * error))


def _is_even(own: RankSummary, peers: Sequence[RankSummary]) -> bool:
    """Without steps: whether what this rank's lines hold on average is as much larger as what they hold at most."""
    others = {(line.place, line.hints): line for one in peers if one is not own for line in one.lines}
    pairs = [(line, others[key]) for line in own.lines if (key := (line.place, line.hints)) in others]
    pairs = [(a, b) for a, b in pairs if a.allocations == b.allocations and not a.static]
    peak = sum(a.peak_bytes for a, _ in pairs) / max(1, sum(b.peak_bytes for _, b in pairs)) - 1
    mean = sum(a.total_bytes for a, _ in pairs) / max(1, sum(b.total_bytes for _, b in pairs)) - 1
    return abs(mean - peak) <= _ALIKE * abs(peak)
