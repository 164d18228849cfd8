"""How seldom a rank holds more: one large batch is no habit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vramlens.ranks.excess.batches import IF_BALANCED
from vramlens.ranks.excess.causes import FIXES
from vramlens.ranks.rank_difference import RankDifference
from vramlens.ranks.rank_summary import RankSummary
from vramlens.units import counted, format_size, joined

_BY_BATCH = ("unknown", "uneven_batch")
"""Causes of which one large batch may be the reason."""
_RARE, _FEWEST_STEPS = 0.05, 20
"""Of a rank's steps, that need more than any of the others': with a fifth, each epoch's longest batch
would be rare; of fewer steps than these, one is more than that share.
"""
_FAR = 1.25
"""Times what any other step needs."""
_MOST_NAMED = 3
_AT_ITS_PEAK = "at its peak"
"""Of an unknown cause's title, what the steps take the place of."""


@dataclass(frozen=True, slots=True)
class _RareSteps:
    """Few steps that need more than any other step of the job.

    Attributes:
        numbers: of these, ascending.
        steps: how many the rank has.
        peak_bytes: the most that one of them needs.
        usual_bytes: the most that any step of the other ranks needs.
    """

    numbers: tuple[int, ...]
    steps: int
    peak_bytes: int
    usual_bytes: int

    @property
    def times(self) -> float:
        return self.peak_bytes / max(1, self.usual_bytes)

    @property
    def words(self) -> str:
        """How many of all, and which."""
        named = [f"{number:,}" for number in self.numbers[:_MOST_NAMED]]
        unnamed = len(self.numbers) - len(named)
        numbers = joined([*named, f"{unnamed} more"] if unnamed else named)
        return f"{len(self.numbers):,} of its {self.steps:,} steps ({numbers})"

    @property
    def evidence(self) -> str:
        did = f"{counted(len(self.numbers), 'step')} of its {self.steps:,} needed more than any"
        return (
            f"{did} of the others' did: up to {format_size(self.peak_bytes)}, {self.times:.2f}x the"
            f" {format_size(self.usual_bytes)} that these need at most"
        )


def with_rare_steps(
    differences: Sequence[RankDifference], ranks: Mapping[int, RankSummary]
) -> tuple[RankDifference, ...]:
    """Differences, with the steps of a rank that they are of, where these are few."""
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
    of_others = max((peak for number, peak in highest.items() if number != own), default=0)
    rare = _rare_steps(ranks[own].step_peaks, of_others)
    if rare is None:
        return difference
    # What batches are on average says nothing of a few.
    evidence = [line for line in difference.evidence if not line.startswith(IF_BALANCED)]
    rare_difference = replace(difference, evidence=(*evidence, rare.evidence))
    if difference.cause == "uneven_batch":
        return _of_inputs(rare_difference, rare)
    title = rare_difference.title.replace(_AT_ITS_PEAK, f"in {rare.words}")
    return replace(rare_difference, title=title)


def _rare_steps(peaks: Sequence[int], of_others: int) -> _RareSteps | None:
    """The steps that need more than any of other ranks; None where there are none, or many."""
    numbers = tuple(number for number, peak in enumerate(peaks) if peak > of_others)
    if len(peaks) < _FEWEST_STEPS or not 0 < len(numbers) <= _RARE * len(peaks):
        return None
    return _RareSteps(numbers, len(peaks), max(peaks), of_others)


def _of_inputs(difference: RankDifference, rare: _RareSteps) -> RankDifference:
    """Larger batches, as those of a few steps: to level all of them does not lower these."""
    size = format_size(difference.bytes)
    far = "far " if rare.times >= _FAR else ""
    is_of_batches = difference.fix.startswith(FIXES["uneven_batch"])
    fix = (
        f"split or cap the largest samples (about {size}); or spread them over the ranks, so that"
        " all have theirs in one step:"
        " DataLoader(batch_sampler=vramlens.BalancedBatchSampler(lengths, batch_size))"
    )
    return replace(
        difference,
        title=f"rank {difference.ranks[0]} has {far}larger inputs in {rare.words},"
        f" {rare.times:.2f}x the memory of any other step: {size} more than its peers",
        fix=fix if is_of_batches else difference.fix,
    )
