"""A copy of all weights on one rank, where the ranks divide them; an average of whole weights is its own work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.summaries import line, named_causes, rank_of
from vramlens.ground.verdict import Verdict
from vramlens.ranks import RankSummary, compare
from vramlens.ranks.hints import Hint
from vramlens.ranks.rank_summary import ParameterGroup
from vramlens.units import MIB

PART = ParameterGroup("model.layers.{0-11}.mlp", "stepped", 24, 240 * MIB, 1)


def job(copies: int, tensor_mib: int, hints: Hint = Hint.SHARDED) -> list[RankSummary]:
    """Two ranks with 24 parameters of 10 MiB each; the first keeps copies, so large each."""
    lines = [
        line(10, "parameters", 24, 10 * MIB, phase="other", hints=hints),
        line(11, "activations", 40, 10 * MIB, per_step=40),
    ]
    average = [
        line(26, "other", copies, tensor_mib * MIB, phase="other"),
        line(31, "temporaries", 1, 2 * MIB, per_step=8),
    ]
    return [
        rank_of(number, 2, [*lines, *(average if number == 0 else [])], parameters=(PART,))
        for number in range(2)
    ]


def test_an_average_of_whole_weights_beside_shards() -> None:
    (told,) = compare(job(24, 20)).differences
    assert (told.ranks, told.cause, told.verdict) == ((0,), "whole_copy", Verdict.LIKELY)
    assert told.bytes == 480 * MIB
    assert told.place is not None
    assert told.place.line == 26
    assert "24 tensors, as many as the model has parameters, hold 480.00 MiB" in told.evidence[0]
    assert "to_local()" in told.fix


def test_an_average_that_is_a_module() -> None:
    """Its parameters have names, too; they are no part of what the ranks divide."""
    divided = replace(PART, parts=2)
    copy = ParameterGroup("ViT.layers.{0-11}.mlp", "frozen", 24, 480 * MIB, 2)
    first, second = (replace(rank, parameters=(divided,)) for rank in job(24, 20))
    (told,) = compare([replace(first, parameters=(copy, divided)), second]).differences
    assert (told.ranks, told.cause, told.bytes) == ((0,), "whole_copy", 480 * MIB)


@pytest.mark.parametrize(("copies", "tensor_mib"), [(24, 10), (24, 25), (12, 40)])
def test_what_is_no_copy_of_divided_weights(copies: int, tensor_mib: int) -> None:
    """As large as the rank's own parameters, no multiple of them, or another number of tensors."""
    causes = {cause for _, cause in named_causes(compare(job(copies, tensor_mib)))}
    assert "whole_copy" not in causes


def test_a_copy_in_float32_beside_whole_weights() -> None:
    """Nothing says that the ranks divide them."""
    causes = {cause for _, cause in named_causes(compare(job(24, 20, Hint.NONE)))}
    assert "whole_copy" not in causes
