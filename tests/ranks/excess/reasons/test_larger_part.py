"""What a rank keeps from step to step, or builds before the first, is no batch: of a larger part of it no
sampler is told. Of larger batches it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

import pytest

from support.recordings import data_of, read
from support.summaries import STEPS, line, named_causes, rank_of
from vramlens.fleet.summary_json import summary_from_json, summary_to_json
from vramlens.ground.verdict import Verdict
from vramlens.ranks import Comparison, RankSummary, compare, summarise
from vramlens.ranks.rank_summary import LineUse, RankGrowth
from vramlens.units import MIB

TIMES = 3


def rebuilt(times: float, *, are_kept: bool = True) -> list[LineUse]:
    """A model whose tensors are made anew every few steps, so many times as large as usual."""
    size = int(40 * times * MIB)
    kept = replace(line(20, "temporaries", 10, size, per_step=10), allocations=12 * 10)
    states = replace(line(21, "temporaries", 20, size, per_step=20), allocations=12 * 20)
    passing = line(22, "activations", 8, int(30 * times * MIB), per_step=8)
    made = [replace(one, total_bytes=one.allocations * size) for one in (kept, states)]
    if are_kept:
        made = [replace(one, kept_bytes=one.at_peak_bytes) for one in made]
    return [*made, passing, line(23, "gradients", 10, size, per_step=10, phase="backward")]


def solver(times: float, *, built: float | None = None, at: str = "other") -> list[LineUse]:
    """Vectors of a solver, which are so many times as long; what is built first may be as long."""
    rows = line(40, at, 1, int(8 * (built or times) * MIB), per_step=1, phase="other")
    return [
        line(41, "other", 3, 200 * MIB, phase="other"),
        replace(rows, allocations=1, total_bytes=rows.peak_bytes, static=at == "parameters"),
        line(42, "temporaries", 50, int(8 * times * MIB), per_step=50),
    ]


def job(lines: Iterable[list[LineUse]], **changes: object) -> Comparison:
    held = list(lines)
    return compare([rank_of(rank, len(held), of, **changes) for rank, of in enumerate(held)])


def test_a_larger_part_of_a_model_is_no_batch() -> None:
    (told,) = job([rebuilt(1), rebuilt(TIMES)]).differences
    assert (told.ranks, told.cause, told.verdict) == ((1,), "larger_part", Verdict.POSSIBLE)
    assert told.title.startswith(
        "rank 1 holds a larger part of the model, or of the data that it k"
    )
    assert "BalancedBatchSampler" not in told.fix
    assert "if the parts are meant to be equal" in told.fix
    assert told.evidence[0].endswith("(the same number of allocations, 3.00x the size)")
    assert any(
        "stay from one step to the next, so it is not a larger batch" in said
        for said in told.evidence
    )
    assert not any("if balanced" in said for said in told.evidence)


def test_what_passes_within_a_step_is_a_batch() -> None:
    """The twin: the same lines, but nothing of them lives for a whole step."""
    plain = [
        [one for one in rebuilt(times, are_kept=False) if one.category != "gradients"]
        + [line(24, "gradients", 10, 40 * MIB, per_step=10, phase="backward")]
        for times in (1, TIMES)
    ]
    (told,) = job(plain).differences
    assert (told.cause, "BalancedBatchSampler" in told.fix) == ("uneven_batch", True)


def test_a_batch_beside_what_both_keep_is_a_batch() -> None:
    """States and weights are as large on both: only a batch makes activations larger."""
    weights = replace(line(25, "other", 10, 400 * MIB), kept_bytes=4000 * MIB)
    lines = [[weights, line(26, "activations", 8, size * MIB, per_step=8),
              line(27, "temporaries", 1, size * MIB, per_step=8, phase="backward")]
             for size in (100, 150)]  # fmt: skip
    assert named_causes(job(lines)) == [((1,), "uneven_batch")]


def test_a_table_from_before_the_first_step_makes_no_part_of_a_batch() -> None:
    """It is a difference of its own, beside the batch."""
    held = []
    for times in (1, 2):
        table = line(30, "other", 1, 900 * times * MIB, phase="other")
        table = replace(table, kept_bytes=table.at_peak_bytes)
        passing = line(31, "activations", 8, 50 * times * MIB, per_step=8)
        backward = line(32, "temporaries", 1, 50 * times * MIB, per_step=8, phase="backward")
        held.append([table, passing, backward])
    causes = {cause for _, cause in named_causes(job(held))}
    assert causes == {"larger_tensors", "uneven_batch"}


def test_outputs_that_leak_on_all_ranks_say_nothing_of_a_part() -> None:
    """Larger batches leave larger outputs behind."""
    held = []
    for rank, size in enumerate((20, 30)):
        kept = line(28, "temporaries", STEPS, size * MIB, per_step=1)
        kept = replace(kept, kept_bytes=kept.at_peak_bytes)
        passing = line(29, "activations", 1, 2 * size * MIB, per_step=1, phase="backward")
        leak = RankGrowth(Verdict.LIKELY, kept.place, size * MIB, 5 * size * MIB, 5, None)
        held.append(rank_of(rank, 2, [kept, passing], leaks=(leak,)))
    assert named_causes(compare(held)) == [((1,), "uneven_batch")]


def test_rows_of_a_solver_are_no_batch() -> None:
    """A basis lives within a step; what was built before the first step is as many times as long."""
    (told,) = job([solver(1), solver(5)]).differences
    assert (told.ranks, told.cause) == ((1,), "larger_part")
    assert any("built before the first step is 5.00x the size" in said for said in told.evidence)


@pytest.mark.parametrize(
    "lines",
    [
        [solver(1, built=1), solver(5, built=1)],
        [solver(1, built=1), solver(5, built=2)],
        [[*solver(times), line(43, "parameters", 4, 100 * MIB, phase="other")] for times in (1, 5)],
    ],
    ids=["as much was built", "another factor", "a model"],
)
def test_larger_inputs_of_what_does_not_train_stay_batches(lines: list[list[LineUse]]) -> None:
    assert named_causes(job(lines)) == [((1,), "uneven_batch")]


def test_parameters_from_before_the_recording_may_be_a_model() -> None:
    answer = job([solver(1), solver(5)], before_bytes=100 * MIB)
    assert named_causes(answer) == [((1,), "uneven_batch")]


def test_one_of_many_ranks_may_have_the_larger_part() -> None:
    assert named_causes(job([rebuilt(1), rebuilt(1), rebuilt(TIMES), rebuilt(1)])) == [
        ((2,), "larger_part")
    ]


def recorded() -> RankSummary:
    return summarise(read(data_of("recordings/gpt_annotated")), 0)


def test_what_is_kept_is_what_lives_for_a_whole_step() -> None:
    lines = recorded().lines
    assert all(0 <= one.kept_bytes <= one.at_peak_bytes for one in lines)
    static = [one for one in lines if one.static and one.at_peak_bytes == one.peak_bytes]
    assert static
    assert all(one.kept_bytes >= 0.9 * one.at_peak_bytes for one in static)
    assert not any(one.kept_bytes for one in lines if one.category == "activations")


def test_an_older_summary_says_nothing_of_it() -> None:
    content = json.loads(summary_to_json(recorded()))
    for one in content["lines"]:
        del one["kept_bytes"]
    lines = summary_from_json(json.dumps(content)).lines
    assert lines == tuple(replace(one, kept_bytes=0) for one in recorded().lines)
