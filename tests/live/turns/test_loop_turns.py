"""Turns of the program's outermost loop are steps where nothing else is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vramlens.live.turns.loop_turns import LoopTurns

pytest.importorskip("torch")


def _turns(tmp_path: Path, source: str) -> tuple[list[int], int]:
    """Lines of the loops that were chosen, in their order, and the turns of the last."""
    path = tmp_path / "program.py"
    path.write_text(source)
    chosen: list[int] = []
    turns: list[int] = []

    def choose() -> None:
        assert loops.loop is not None
        chosen.append(loops.loop.line)
        turns.clear()

    loops = LoopTurns(lambda frame: turns.append(frame.f_lineno), choose)
    code = compile(source, str(path), "exec")
    loops.begin()
    try:
        exec(code, {"__name__": "program"})
    finally:
        loops.stop()
    assert sys.gettrace() is None
    return chosen, len(turns)


REQUESTS = """
def handle(number):
    for attempt in range(3):
        abs(number)

def main():
    for number in range(20):
        handle(number)

main()
"""


def test_the_loop_over_requests_and_not_the_loop_inside_of_one(tmp_path: Path) -> None:
    assert _turns(tmp_path, REQUESTS) == ([3, 7], 18)  # and the turn that finds no more


EPOCHS = """
for epoch in range(5):
    for batch in range(40):
        abs(batch)
"""


def test_batches_and_not_the_few_epochs_around_them(tmp_path: Path) -> None:
    chosen, turns = _turns(tmp_path, EPOCHS)
    assert chosen == [3]
    assert turns == 5 * 41 - 3


ONE_AFTER_ANOTHER = """
for path in range(10):
    abs(path)
for request in range(30):
    abs(request)
"""


def test_a_loop_that_follows_takes_over(tmp_path: Path) -> None:
    assert _turns(tmp_path, ONE_AFTER_ANOTHER) == ([2, 4], 28)


TASKS = """
import asyncio

async def serve():
    for number in range(20):
        await asyncio.sleep(0)

asyncio.run(serve())
"""


def test_a_loop_in_a_coroutine(tmp_path: Path) -> None:
    assert _turns(tmp_path, TASKS) == ([5], 18)


def test_it_makes_way_for_a_debugger(tmp_path: Path) -> None:
    def debugger(*_: object) -> None:
        return None

    loops = LoopTurns(lambda _: None, lambda: None)
    before = sys.gettrace()
    sys.settrace(debugger)
    try:
        loops.begin()
        assert not loops.is_tracing
        loops.stop()
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(before)


def test_it_ends_after_so_many_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramlens.live.turns.loop_turns._MOST_EVENTS", 100)
    _, turns = _turns(tmp_path, "for number in range(10_000):\n    abs(number)\n")
    assert 20 < turns < 200
