"""Large batches in a few of many steps are told as such, with advice for these."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.summaries import line, rank_of, trainers
from vramlens.ground.verdict import Verdict
from vramlens.ranks import Comparison, RankSummary, compare
from vramlens.ranks.excess.causes import FIXES
from vramlens.ranks.rank_difference import RankDifference
from vramlens.ranks.rare_steps import with_rare_steps
from vramlens.units import MIB

STEPS = 100
USUAL, LARGE = 1000 * MIB, 1500 * MIB
OLD = "rank 1 holds more memory at its peak, from lines that its peers have, too: 500.00 MiB more"
SAID = "of its 100 needed more than any of the others' did: up to 1.46 GiB, 1.50x the 1000.00 MiB"


def difference(cause: str) -> RankDifference:
    evidence = ("if balanced (estimated): rank 1 gets 0.99x its current batch",)
    return RankDifference(
        (1,), cause, Verdict.POSSIBLE, 500 * MIB, None, OLD, evidence, FIXES[cause]
    )


def told_of(cause: str, peaks: tuple[int, ...], *, world: int = 2) -> RankDifference:
    ranks = {rank.rank: replace(rank, step_peaks=(USUAL,) * STEPS) for rank in trainers(world)}
    ranks[1] = replace(ranks[1], step_peaks=peaks)
    (answer,) = with_rare_steps([difference(cause)], ranks)
    return answer


def peaks_with(*numbers: int, high: int = LARGE, count: int = STEPS) -> tuple[int, ...]:
    return tuple(high if number in numbers else USUAL for number in range(count))


@pytest.mark.parametrize(
    ("numbers", "title"),
    [
        ((40,), "in 1 of its 100 steps (40), 1.50x the memory of any other step: 500.00 MiB more"),
        ((40, 47), "in 2 of its 100 steps (40 and 47), 1.50x"),
        ((1, 2, 3), "in 3 of its 100 steps (1, 2 and 3), 1.50x"),
        ((1, 2, 3, 8, 9), "in 5 of its 100 steps (1, 2, 3 and 2 more), 1.50x"),
    ],
)
def test_larger_inputs_of_few_steps(numbers: tuple[int, ...], title: str) -> None:
    told = told_of("uneven_batch", peaks_with(*numbers), world=4)
    assert told.title.startswith(f"rank 1 has far larger inputs {title}")
    assert told.fix.startswith("split or cap the largest samples (about 500.00 MiB); or spread")
    (seldom,) = told.evidence
    assert SAID in seldom
    assert seldom.startswith("1 step " if len(numbers) == 1 else f"{len(numbers)} steps ")


def test_a_little_larger_is_not_far_larger() -> None:
    told = told_of("uneven_batch", peaks_with(40, high=1100 * MIB))
    assert told.title.startswith("rank 1 has larger inputs in 1 of its 100 steps (40), 1.10x")


def test_of_an_unknown_cause_the_steps_are_told_and_no_inputs() -> None:
    told = told_of("unknown", peaks_with(40))
    assert told.title.startswith("rank 1 holds more memory in 1 of its 100 steps (40), from lines")
    assert (told.fix, SAID in told.evidence[-1]) == (FIXES["unknown"], True)


@pytest.mark.parametrize(
    ("cause", "peaks"),
    [
        ("unknown", peaks_with(*range(6))),
        ("uneven_batch", peaks_with(*range(6))),
        ("uneven_batch", peaks_with()),
        ("uneven_batch", peaks_with(3, count=19)),
        ("rank_only", peaks_with(40)),
    ],
    ids=["many steps", "many larger batches", "none", "a short run", "another cause"],
)
def test_nothing_changes_where_they_are_not_few(cause: str, peaks: tuple[int, ...]) -> None:
    assert told_of(cause, peaks) == difference(cause)


def test_another_advice_stays() -> None:
    ranks = {rank.rank: replace(rank, step_peaks=(USUAL,) * STEPS) for rank in trainers(2)}
    ranks[1] = replace(ranks[1], step_peaks=peaks_with(40))
    graph = replace(difference("uneven_batch"), fix="evaluate under torch.no_grad()")
    (told,) = with_rare_steps([graph], ranks)
    assert told.fix == "evaluate under torch.no_grad()"


def varied(rank: int, mean: float, most: float, peaks: tuple[int, ...]) -> RankSummary:
    """A rank whose batches are so many times as large on average, and at most."""
    weights = line(10, "parameters", 2, 100 * MIB, phase="other")
    kept = line(11, "activations", 8, int(100 * most * MIB), per_step=8)
    kept = replace(kept, total_bytes=int(kept.allocations * 60 * mean * MIB))
    passing = replace(kept, place=replace(kept.place, line=12), category="temporaries")
    passing = replace(passing, at_peak_bytes=0, phase="backward")
    return rank_of(rank, 2, [weights, kept, passing], step_peaks=peaks)


def scans(mean: float, most: float, *numbers: int) -> Comparison:
    """Two ranks, of which one has so many times larger inputs in some steps."""
    usual = tuple((700 + 300 * (step % 7) // 6) * MIB for step in range(STEPS))
    peaks = tuple(int(peak * most) if at in numbers else peak for at, peak in enumerate(usual))
    return compare([varied(0, 1.0, 1.0, usual), varied(1, mean, most, peaks)])


def test_what_is_as_large_on_average_has_no_figures_for_a_balance() -> None:
    (told,) = scans(1.03, 1.9, 40, 47).differences
    assert (told.ranks, told.cause) == ((1,), "uneven_batch")
    assert "(40 and 47)" in told.title
    assert (
        "(the same number of allocations; up to 1.90x as much in use at once)" in told.evidence[0]
    )
    assert not any("if balanced" in said for said in told.evidence)


def test_larger_batches_in_all_steps_keep_their_words() -> None:
    """The twin: nothing of it is rare."""
    (told,) = scans(1.9, 1.9, *range(STEPS)).differences
    assert told.title.startswith("rank 1 has larger batches or longer sequences: ")
    assert told.fix.startswith(FIXES["uneven_batch"])
    assert any(
        said.startswith("if balanced (estimated): rank 1 gets 0.76x its current")
        for said in told.evidence
    )
    assert "(the same number of allocations, 1.90x the size)" in told.evidence[0]
