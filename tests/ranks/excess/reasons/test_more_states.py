"""A rank whose optimizer keeps more for each parameter is told so; ranks that have more parameters, or
divide the states among them, are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from support.summaries import line, named_causes, rank_of
from vramlens.ground.verdict import Verdict
from vramlens.ranks import RankSummary, compare
from vramlens.ranks.rank_summary import LineUse
from vramlens.units import MIB

PARAMETERS = 24


def _step(states: int, parameters: int = PARAMETERS) -> list[LineUse]:
    return [
        line(10, "parameters", parameters, 20 * MIB, phase="other"),
        line(11, "activations", 40, 20 * MIB, per_step=40),
        line(12, "optimizer_state", states, 20 * MIB, phase="optimizer"),
        line(13, "gradients", parameters, 20 * MIB, per_step=parameters, phase="backward"),
    ]


def _job(steps: Sequence[list[LineUse]]) -> list[RankSummary]:
    return [rank_of(number, len(steps), lines) for number, lines in enumerate(steps)]


def test_a_rank_with_another_optimizer() -> None:
    usual, more = _step(states=PARAMETERS), _step(states=2 * PARAMETERS)
    (told,) = compare(_job([usual, usual, more, usual])).differences
    assert (told.ranks, told.cause, told.verdict) == ((2,), "more_states", Verdict.LIKELY)
    assert told.bytes == PARAMETERS * 20 * MIB
    assert told.evidence[0] == (
        "960.00 MiB of optimizer state for 480.00 MiB of parameters; its peers: 480.00 MiB"
    )
    assert told.fix.startswith("build the same optimizer, with the same options, on all ranks")


def test_where_peers_keep_none() -> None:
    usual, more = _step(states=1), _step(states=PARAMETERS)
    assert named_causes(compare(_job([more, usual, usual]))) == [((0,), "more_states")]


def test_a_rank_with_more_parameters() -> None:
    usual, more = _step(states=24), _step(states=40, parameters=40)
    causes = {cause for _, cause in named_causes(compare(_job([usual, usual, more, usual])))}
    assert "more_states" not in causes


def test_a_rank_that_trains_more() -> None:
    """Its gradients are more, too; which parameters are frozen, the recordings do not say."""
    usual, more = _step(states=4), _step(states=24)
    frozen = [replace(use, peak_bytes=4 * 20 * MIB, at_peak_bytes=4 * 20 * MIB) for use in usual]
    usual = [*usual[:3], frozen[3]]
    causes = {cause for _, cause in named_causes(compare(_job([usual, usual, more, usual])))}
    assert "more_states" not in causes


def test_ranks_that_divide_the_states() -> None:
    steps = [_step(states) for states in (10, 14, 24, 12)]
    causes = {cause for _, cause in named_causes(compare(_job(steps)))}
    assert "more_states" not in causes


def test_of_two_ranks_nobody_is_the_odd_one() -> None:
    steps = [_step(states=PARAMETERS), _step(states=2 * PARAMETERS)]
    causes = {cause for _, cause in named_causes(compare(_job(steps)))}
    assert "more_states" not in causes
