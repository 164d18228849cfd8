"""How seldom a rank holds more: one large batch is no habit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vramlens.ranks.rank_difference import RankDifference
from vramlens.ranks.rank_summary import RankSummary
from vramlens.units import counted

_BY_BATCH = ("unknown", "uneven_batch")
"""Causes of which one large batch may be the reason."""
_RARE, _FEWEST_STEPS = 0.05, 20
"""Of a rank's steps, that need more than any of the others': with a fifth, each epoch's longest batch
would be rare; of fewer steps than these, one is more than that share.
"""


def with_rare_steps(
    differences: Sequence[RankDifference], ranks: Mapping[int, RankSummary]
) -> tuple[RankDifference, ...]:
    """Differences, with how many of a rank's steps they are of, where these are few."""
    if not any(map(_may_be_of_a_batch, differences)):
        return tuple(differences)
    highest = {number: max(rank.step_peaks, default=0) for number, rank in ranks.items()}
    return tuple(_told(difference, ranks, highest) for difference in differences)


def _may_be_of_a_batch(difference: RankDifference) -> bool:
    return difference.cause in _BY_BATCH and len(difference.ranks) == 1


def _told(
    difference: RankDifference, ranks: Mapping[int, RankSummary], highest: Mapping[int, int]
) -> RankDifference:
    if not _may_be_of_a_batch(difference):
        return difference
    (own,) = difference.ranks
    steps = ranks[own].step_peaks
    of_others = max((peak for number, peak in highest.items() if number != own), default=0)
    above = sum(peak > of_others for peak in steps)
    if len(steps) < _FEWEST_STEPS or not 0 < above <= _RARE * len(steps):
        return difference
    seldom = (
        f"{counted(above, 'step')} of its {len(steps):,} needed more than any of the others' did"
    )
    return replace(difference, evidence=(*difference.evidence, seldom))
