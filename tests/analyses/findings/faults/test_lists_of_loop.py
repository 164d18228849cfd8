"""Lists that a solver's loop fills, beside loops that go no farther than before."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import Frame, MadeRun, finding_of
from vramlens.analyses.finding import Finding
from vramlens.units import MIB

USER = "/home/user/solve.py"
RUN: Frame = (USER, 129, "run")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "field": ((USER, 110, "run"),),
    "turn": ((USER, 74, "solve"), RUN),
    "apply": ((USER, 50, "apply"), (USER, 64, "solve"), RUN),
}


def told(folder: Path, turns: list[int], *, name: str = "list[{}]") -> Finding | None:
    """What is told of a solver that is called so often, with so many turns of its loop; the last call fails."""
    run = MadeRun(FRAMES)
    run.asks("field", 8, name="City.map")
    for count in turns[:-1]:
        run.frees(*[run.asks("turn", 8) for _ in range(count)])
        run.asks("field", 1)
    for turn in range(turns[-1]):
        run.asks("turn", 8, name=name.format(turn))
    return finding_of(run.fails("apply", 8, folder), "lists_of_loop")


def test_a_loop_that_goes_on_for_more_turns_than_before(tmp_path: Path) -> None:
    finding = told(tmp_path, [20, 22, 40])
    assert finding is not None
    assert finding.bytes == 40 * 8 * MIB
    assert "this call of solve() fills" in finding.title
    assert "each of 40 turns" in finding.title
    assert "more than 22 turns" in finding.evidence[0]
    assert "tolerance * b.norm()" in (finding.fix or "")


@pytest.mark.parametrize(
    ("turns", "name"),
    [
        ([40, 40], "list[{}]"),
        ([40, 30], "list[{}]"),
        ([40], "list[{}]"),  # nothing to compare with
        ([4, 9], "list[{}]"),
        ([20, 40], "Trajectory.states[{}]"),  # a store of the program's
        ([20, 40], ""),
    ],
)
def test_loops_that_go_no_farther_or_fill_no_list(
    tmp_path: Path, turns: list[int], name: str
) -> None:
    assert told(tmp_path, turns, name=name) is None
