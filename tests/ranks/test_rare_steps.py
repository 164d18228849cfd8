"""One large batch among many steps is told as such."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.summaries import trainers
from vramlens.ground.verdict import Verdict
from vramlens.ranks.rank_difference import RankDifference
from vramlens.ranks.rare_steps import with_rare_steps
from vramlens.units import MIB

STEPS = 100


def difference(cause: str) -> RankDifference:
    return RankDifference((1,), cause, Verdict.POSSIBLE, 500 * MIB, None, "", (), "")


@pytest.mark.parametrize(
    ("cause", "high_steps", "told"),
    [
        ("unknown", 1, "1 step of its 100 needed more than any of the others' did"),
        ("uneven_batch", 5, "5 steps of its 100 needed more than any of the others' did"),
        ("unknown", 6, ""),
        ("unknown", 0, ""),
        ("rank_only", 1, ""),
    ],
)
def test_how_few_steps_needed_more(cause: str, high_steps: int, told: str) -> None:
    usual, large = 1000 * MIB, 1500 * MIB
    first, second = (replace(rank, step_peaks=(usual,) * STEPS) for rank in trainers(2))
    peaks = (large,) * high_steps + (usual,) * (STEPS - high_steps)
    ranks = {0: first, 1: replace(second, step_peaks=peaks)}
    (answer,) = with_rare_steps([difference(cause)], ranks)
    assert answer.evidence == ((told,) if told else ())
