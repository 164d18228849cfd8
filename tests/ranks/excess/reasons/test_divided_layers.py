"""A layer that is divided among the ranks in unequal parts makes what is computed with it larger by the same
factor: that is no larger batch, and no sampler mends it.
"""

from __future__ import annotations

import pytest

from support.summaries import line, named_causes, rank_of
from vramlens.ground.verdict import Verdict
from vramlens.ranks import RankSummary, compare
from vramlens.ranks.rank_summary import LineUse, ParameterGroup
from vramlens.units import MIB


def body(batch: float = 1) -> list[LineUse]:
    """What all ranks have alike, but for their batches."""
    return [
        line(80, "parameters", 10, 5 * MIB, phase="other"),
        line(71, "activations", 10, int(10 * batch * MIB), per_step=10),
    ]


def words(part: float, batch: float = 1) -> list[LineUse]:
    """So large a part of a vocabulary, and what a step computes with it."""
    size = int(180 * part * batch * MIB)
    return [
        line(83, "parameters", 1, int(36 * part * MIB), phase="other"),
        line(38, "activations", 1, size, per_step=1),
        line(54, "temporaries", 1, size, per_step=1, phase="backward"),
    ]


def table(size: int) -> list[LineUse]:
    """A table that one rank has for all, of so many MiB, and what each step looks up in it."""
    return [
        line(82, "parameters", 1, size * MIB, phase="other"),
        line(87, "activations", 1, 5 * MIB, per_step=1),
    ]


def job(*ranks: list[LineUse]) -> list[RankSummary]:
    return [rank_of(rank, len(ranks), lines) for rank, lines in enumerate(ranks)]


@pytest.mark.parametrize("part", [1.25, 1.78, 3])
def test_a_larger_part_of_a_layer_is_no_larger_batch(part: float) -> None:
    (told,) = compare(job(*[[*body(), *words(1)]] * 3, [*body(), *words(part)])).differences
    assert (told.ranks, told.cause, told.verdict) == ((3,), "larger_part", Verdict.POSSIBLE)
    advice = " ".join((*told.evidence, told.fix))
    assert f"the parameters of train/model.py:83 in f83 are {part:.2f}x the size, too" in advice
    assert "BalancedBatchSampler" not in advice
    assert "if balanced" not in advice


def test_another_part_of_the_model_is_a_note() -> None:
    """The other rank has a table instead, and so no fewer parameters."""
    answer = compare(job([*body(), *words(1), *table(98)], [*body(), *words(1.78)]))
    assert answer.differences == ()
    (note,) = (note for note in answer.notes if "no larger batch" in note)
    assert note.startswith(
        "rank 1 has a larger part of what is divided at train/model.py:83 in f83, and no more"
        " parameters in all"
    )


def test_a_small_table_elsewhere_makes_no_other_part() -> None:
    answer = compare(job([*body(), *words(1), *table(20)], [*body(), *words(1.78)]))
    assert named_causes(answer) == [((1,), "larger_part")]


@pytest.mark.parametrize(
    "odd",
    [
        [*body(1.78), *words(1, 1.78)],
        [*body(1.5), *words(1.05, 1.5)],
        [*body(4), *words(1.3)],
    ],
    ids=["equal parts", "a little larger part", "mostly a batch"],
)
def test_what_parameters_do_not_explain_stays_a_batch(odd: list[LineUse]) -> None:
    assert ((1,), "uneven_batch") in named_causes(compare(job([*body(), *words(1)], odd)))


def test_a_small_bias_that_is_larger_says_nothing_of_a_part() -> None:
    bias = [line(85, "parameters", 1, size * MIB // 16, phase="other") for size in (16, 24)]
    plain, odd = ([*body(batch), *words(1, batch)] for batch in (1, 1.5))
    answer = compare(job([*plain, bias[0]], [*odd, bias[1]]))
    assert named_causes(answer) == [((1,), "uneven_batch")]


@pytest.mark.parametrize(
    ("module", "cause"),
    [("model.layers.{0-7}.mlp.gate", "larger_part"), ("model.tables.{0-7}", "embedding_shard")],
)
def test_names_say_whether_larger_parameters_are_tables(module: str, cause: str) -> None:
    """Parameters of one line, of which only some are larger; no line of the model is larger by as much."""
    ranks = [
        rank_of(
            number,
            2,
            [
                line(80, "parameters", 10, int(5 * part * MIB), phase="other"),
                line(71, "activations", 10, 10 * MIB, per_step=10),
            ],
            parameters=(ParameterGroup(module, "stepped", 8, int(40 * part * MIB), number),),
        )
        for number, part in enumerate((1, 2.5))
    ]
    assert ((1,), cause) in named_causes(compare(ranks))
