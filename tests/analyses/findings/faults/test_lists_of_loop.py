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


def told(
    folder: Path,
    turns: list[int],
    *,
    name: str = "list[{}]",
    text: str = "if res < self.opts.tol:",
    begins_inside: bool = False,
    thread_every: int = 0,
) -> Finding | None:
    """What is told of a solver that is called so often, with so many turns of its loop; the last call fails.

    Args:
        text: of a line of the loop.
        begins_inside: whether the recording begins in the first call.
        thread_every: after how many turns another thread asks for something; 0 without one.
    """
    run = MadeRun(FRAMES)
    if not begins_inside:
        run.asks("field", 8, name="City.map")
    for count in turns[:-1]:
        kept = []
        for turn in range(count):
            kept.append(run.asks("turn", 8))
            if thread_every and turn % thread_every == 0:
                run.events.extend(_of_thread(run))
        run.frees(*kept)
        run.asks("field", 1)
    for turn in range(turns[-1]):
        run.asks("turn", 8, name=name.format(turn))
    source = {(USER, 66): text}
    return finding_of(run.fails("apply", 8, folder, source=source), "lists_of_loop")


def _of_thread(run: MadeRun) -> list[dict[str, object]]:
    """A request of another thread, that is given back."""
    address = run.asks("field", 1)
    run.frees(address)
    own = run.events[-5:]
    del run.events[-5:]
    worker = [{"filename": "/usr/lib/python3.12/threading.py", "line": 1012, "name": "run"}]
    return [event | {"frames": worker} if event["frames"] else event for event in own]


def test_a_loop_that_goes_on_for_more_turns_than_before(tmp_path: Path) -> None:
    finding = told(tmp_path, [20, 22, 40])
    assert finding is not None
    assert finding.bytes == 40 * 8 * MIB
    assert "this call of solve() fills" in finding.title
    assert "each of 40 turns" in finding.title
    assert "more than 22 turns" in finding.evidence[0]
    assert "tolerance * b.norm()" in (finding.fix or "")


@pytest.mark.parametrize(
    ("turns", "name", "text"),
    [
        ([40, 40], "list[{}]", "if res < tol:"),
        ([40, 30], "list[{}]", "if res < tol:"),
        ([40], "list[{}]", "if res < tol:"),  # nothing to compare with
        ([4, 9], "list[{}]", "if res < tol:"),
        ([20, 40], "Trajectory.states[{}]", "if res < tol:"),  # a store of the program's
        ([20, 40], "", "if res < tol:"),
        ([20, 40], "list[{}]", "for t in range(len(text)):"),  # a longer text
        ([20, 40], "list[{}]", "if token == self.stop:"),
        ([20, 40], "list[{}]", "if done[env]:"),
    ],
)
def test_loops_that_go_no_farther_or_fill_no_list(
    tmp_path: Path, turns: list[int], name: str, text: str
) -> None:
    assert told(tmp_path, turns, name=name, text=text) is None


@pytest.mark.parametrize(
    "text",
    [
        "while err > 1e-6:",
        "if norm < self.tolerance:",
        "if r.norm() < eps:",
        "elif delta < threshold:",
    ],
)
def test_what_ends_a_solvers_loop(tmp_path: Path, text: str) -> None:
    assert told(tmp_path, [20, 22, 40], text=text) is not None


def test_a_call_that_the_recording_begins_in_is_cut_short(tmp_path: Path) -> None:
    assert told(tmp_path, [20, 60], begins_inside=True) is None
    assert told(tmp_path, [20, 30, 60], begins_inside=True) is not None


def test_another_threads_requests_end_no_call(tmp_path: Path) -> None:
    assert told(tmp_path, [50, 50, 40], thread_every=20) is None
