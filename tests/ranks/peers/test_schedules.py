"""Stages that a library's schedule runs, which each calls at a line of its own."""

from __future__ import annotations

import pytest

from support.summaries import line, rank_of
from vramlens.ranks import RankSummary, compare
from vramlens.ranks.hints import Hint
from vramlens.ranks.peers.schedules import are_run_by_schedule, with_one_schedule
from vramlens.ranks.rank_summary import LineUse
from vramlens.units import MIB

SCHEDULE = Hint.POINT_TO_POINT


def stage(number: int, layers: int, *, calls_at: int, hints: Hint = SCHEDULE) -> RankSummary:
    """A stage of so many layers, whose schedule is called at a line."""
    lines: list[LineUse] = [
        line(10, "parameters", layers, 40 * MIB, phase="other"),
        line(11, "optimizer_state", layers, 80 * MIB, phase="optimizer"),
        line(calls_at, "activations", layers * 4, 60 * MIB, per_step=layers * 4, hints=hints),
    ]
    if number:
        lines.append(line(calls_at, "activations", 1, MIB, per_step=4, hints=SCHEDULE | Hint.LOSS))
    else:
        lines.append(line(20, "parameters", 1, 300 * MIB, phase="other"))
    return rank_of(number, 2, lines)


@pytest.mark.parametrize(("layers", "is_told"), [((4, 12), True), ((8, 8), False)])
def test_layers_of_stages(layers: tuple[int, int], *, is_told: bool) -> None:
    ranks = [stage(0, layers[0], calls_at=97), stage(1, layers[1], calls_at=99)]
    answer = compare(ranks)
    assert answer.cohorts.staged
    assert bool(answer.differences) == is_told
    if is_told:
        (difference,) = answer.differences
        assert (difference.ranks, difference.cause) == ((1,), "pipeline_stage")
        assert "3.00 times as many layers as the usual stage" in difference.evidence


def test_ranks_without_a_schedule_are_left_as_they_are() -> None:
    ranks = {number: stage(number, 4, calls_at=97 + number, hints=Hint.NONE) for number in range(2)}
    assert not are_run_by_schedule(ranks.values())
    assert with_one_schedule(ranks) == ranks
    assert with_one_schedule({}) == {}
    assert not are_run_by_schedule([])


def test_a_schedule_is_one_line_on_all_ranks() -> None:
    ranks = with_one_schedule({0: stage(0, 4, calls_at=97), 1: stage(1, 4, calls_at=99)})
    places = {
        used.place for summary in ranks.values() for used in summary.lines if used.hints & SCHEDULE
    }
    assert [place.line for place in places if place is not None] == [97]
