"""Notes of a comparison: what was ended from outside, and what keeps ranks from being compared."""

from __future__ import annotations

from collections.abc import Sequence

from vramlens.ranks.failures import FailureOrder
from vramlens.ranks.peers.usual import lower_median
from vramlens.ranks.rank_summary import RankSummary
from vramlens.ranks.rank_words import named

_CUT = "the file ends early"
"""Of what a recording does not hold, the words of ``read`` for a truncated one."""


def note_of_victims(
    failures: FailureOrder, ranks: Sequence[RankSummary], missing: Sequence[int]
) -> list[str]:
    """One sentence on who was ended by SIGTERM, and after whom; none where nobody was."""
    victims = failures.victims
    if not victims:
        return []
    verb, noun = ("was", "a victim") if len(victims) == 1 else ("were", "victims")
    ended = f"{named(victims)} {verb} ended by SIGTERM"
    if failures.failed:
        return [f"{ended} and did not fail: {noun} of rank {failures.failed[0].rank}"]
    survivors = [summary.rank for summary in ranks if summary.rank not in victims]
    if survivors:
        return [
            f"{ended}; {named(survivors)} ended without it, so the first failure is in their output"
        ]
    if missing:
        return [
            f"{ended}; the first failure is likely in the output of {named(missing)}, whose "
            "files are missing here"
        ]
    return [
        f"{ended}, which is every rank here: the job was stopped from outside, or a rank "
        "without a recording failed"
    ]


def notes_of_recordings(ranks: Sequence[RankSummary]) -> list[str]:
    """The limits that the recordings set to a comparison, one sentence each."""
    notes = _note_of_steps([summary for summary in ranks if summary.device >= 0])
    empty = [summary.rank for summary in ranks if summary.device < 0]
    if empty:
        notes.append(f"the recording of {named(empty)} contains no GPU memory")
    cut = [summary.rank for summary in ranks if any(_CUT in gap for gap in summary.missing)]
    if cut:
        notes.append(f"the recording of {named(cut)} ends early: its numbers are lower bounds")
    return notes


def _note_of_steps(ranks: Sequence[RankSummary]) -> list[str]:
    counts = {summary.rank: len(summary.step_peaks) for summary in ranks}
    if len(set(counts.values())) < 2:
        return []
    usual = lower_median(counts.values())
    odd = [rank for rank, count in counts.items() if count != usual]
    return [
        f"{named(odd)} recorded a different number of steps than most ranks, {usual:,}"
        f" ({min(counts.values()):,} to {max(counts.values()):,}):"
        " only the steps that all ranks have are compared"
    ]
