"""Parameters that take exactly twice as much on one rank, under the same names, are wider numbers; a divided
layer of which a rank has two parts is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from support.summaries import line, named_causes, rank_of
from vramlens.ground.verdict import Verdict
from vramlens.ranks import RankSummary, compare
from vramlens.ranks.rank_summary import ParameterGroup
from vramlens.units import MIB

MODULES = ("mlp.up", "mlp.down", "attention.qkv", "norm")


def groups(times: Sequence[int], *, count: int = 8, dtype: str = "") -> tuple[ParameterGroup, ...]:
    """One group a module, each so many times as large as usual."""
    types = {1: "bfloat16", 2: "float32"}
    return tuple(
        ParameterGroup(
            f"stage.layers.{{0-7}}.{module}",
            "stepped",
            count,
            40 * factor * MIB,
            digest=number,
            dtype=dtype or types.get(factor, "float32"),
        )
        for number, (module, factor) in enumerate(zip(MODULES, times, strict=True))
    )


def rank(number: int, world: int, times: Sequence[int], **changes: Any) -> RankSummary:
    factor = sum(times) // len(times)
    lines = [
        line(10, "parameters", 32, 5 * factor * MIB, phase="other"),
        line(11, "activations", 40, 20 * factor * MIB, per_step=40),
    ]
    return rank_of(number, world, lines, parameters=groups(times, **changes))


def test_a_stage_in_float32() -> None:
    (told,) = compare([rank(0, 2, [1] * 4), rank(1, 2, [2] * 4)]).differences
    assert (told.ranks, told.cause, told.verdict) == ((1,), "wider_parameters", Verdict.LIKELY)
    assert told.bytes == (160 + 800) * MIB
    assert told.evidence[0].startswith("8 parameters of stage.layers.{0-7}.")
    assert "half as much" in told.evidence[0]


@pytest.mark.parametrize(
    ("times", "changes"),
    [
        ([2, 2, 2, 1], {}),  # parts of divided layers, beside norms that all have whole
        ([3, 3, 3, 3], {}),
        ([2, 2, 2, 2], {"count": 16}),  # twice as many
        ([2, 2, 2, 2], {"dtype": "bfloat16"}),  # shards of half as many ranks
    ],
)
def test_what_is_twice_as_large_for_another_reason(
    times: Sequence[int], changes: dict[str, Any]
) -> None:
    answer = compare([rank(0, 2, [1] * 4), rank(1, 2, times, **changes)])
    assert "wider_parameters" not in {cause for _, cause in named_causes(answer)}


def test_where_most_ranks_are_wide_none_is_blamed() -> None:
    ranks = [rank(0, 3, [1] * 4), rank(1, 3, [2] * 4), rank(2, 3, [2] * 4)]
    assert "wider_parameters" not in {cause for _, cause in named_causes(compare(ranks))}
