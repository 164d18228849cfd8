"""Turns of the program's outermost loop are steps where nothing else is."""

from __future__ import annotations

import gc
import itertools
import signal
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from vramlens.live.turns.loop_turns import LoopTurns

needs_monitoring = pytest.mark.skipif(sys.version_info < (3, 12), reason="no sys.monitoring")


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


HELPERS = """
import time

def code_of(text):
    value = 7
    for letter in text:
        value = value * 31 + ord(letter)
    return value

def seat(names):
    places = {}
    for place, name in enumerate(names):
        places[name] = place
    return places

def main():
    for batch in range(12):
        names = [f"guest {batch} {number}" for number in range(40)]
        seat(names)
        for _ in range(3):
            time.sleep(0.001)
        sum(map(code_of, names))

main()
"""


def test_a_loop_that_does_a_part_of_a_turn_is_no_unit(tmp_path: Path) -> None:
    """One is in a function that each turn calls forty times, one turns forty times in no time."""
    chosen, turns = _turns(tmp_path, HELPERS)
    assert chosen[-1] == 17
    assert turns >= 6


def test_a_loop_that_is_called_often_stays_where_no_loop_is_around_it(tmp_path: Path) -> None:
    calls = HELPERS.rpartition("main()")[0].rpartition("def main")[0] + "code_of('abcd')\n" * 40
    chosen, turns = _turns(tmp_path, calls)
    assert chosen == [6]
    assert turns == 40 * 5 - 3


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
        assert not loops.sees_turns
        loops.stop()
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(before)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="turns are not traced there")
def test_it_ends_after_so_many_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramlens.live.turns.traced_heads._MOST_EVENTS", 100)
    _, turns = _turns(tmp_path, "for number in range(10_000):\n    abs(number)\n")
    assert 20 < turns < 200


@needs_monitoring
@pytest.mark.parametrize(("turn_ms", "turns"), [(0, 1_666), (10, 4_999), (15, 5_998)])
def test_monitored_turns_are_told_as_long_as_they_cost_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn_ms: int, turns: int
) -> None:
    """A step's end is 0.3 ms: 2% of 15 ms, and of shorter turns half a second."""
    clock = itertools.count(0, turn_ms / 1000)
    monkeypatch.setattr("vramlens.live.turns.monitored_heads.monotonic", lambda: next(clock))
    _, told = _turns(tmp_path, "for number in range(6_000):\n    abs(number)\n")
    assert abs(told - turns) <= 3


SHORT_AND_LONG = """
def work(turns):
    for number in range(turns):
        abs(number)

for request in range(10):
    work(8 if request < 6 else 100_000)
for report in range(5):
    work(8)
"""


@needs_monitoring
def test_a_long_loop_inside_a_turn_is_left_out_until_another_unit(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(SHORT_AND_LONG)
    loops = LoopTurns(lambda _: None, lambda: told.append((loops.loop.line, loops.all_turns)))
    told: list[Any] = []
    loops.begin()
    try:
        exec(compile(SHORT_AND_LONG, str(path), "exec"), {"__name__": "program"})
    finally:
        loops.stop()
    assert [line for line, _ in told] == [3, 6, 8]
    assert 100 < loops.all_turns < 300


@needs_monitoring
def test_its_number_is_given_back(tmp_path: Path) -> None:
    monitoring: Any = vars(sys)["monitoring"]
    tools = [monitoring.get_tool(tool) for tool in range(6)]
    code = compile("for number in range(9):\n    abs(number)\n", str(tmp_path / "a.py"), "exec")
    (tmp_path / "a.py").write_text("for number in range(9):\n    abs(number)\n")
    loops = LoopTurns(lambda _: None, lambda: None)
    loops.begin()
    assert "vramlens" in [monitoring.get_tool(tool) for tool in range(6)]
    exec(code, {})
    loops.stop()
    assert [monitoring.get_tool(tool) for tool in range(6)] == tools
    before = loops.all_turns
    exec(code, {})
    assert loops.all_turns == before


@needs_monitoring
def test_other_threads_turns_are_no_steps(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("for number in range(500):\n    abs(number)\n")
    code = compile(path.read_text(), str(path), "exec")
    loops = LoopTurns(lambda _: None, lambda: None)
    loops.begin()
    thread = threading.Thread(target=exec, args=(code, {}))
    thread.start()
    thread.join()
    assert (loops.all_turns, loops.loop) == (0, None)
    exec(code, {})
    loops.stop()


@needs_monitoring
def test_an_error_of_a_signal_handler_reaches_the_program(tmp_path: Path) -> None:
    class Late(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        raise Late

    path = tmp_path / "program.py"
    path.write_text("for number in range(50):\n    abs(number)\n")
    loops = LoopTurns(lambda _: signal.raise_signal(signal.SIGUSR1), lambda: None)
    before = signal.signal(signal.SIGUSR1, handler)
    loops.begin()
    try:
        with pytest.raises(Late):
            exec(compile(path.read_text(), str(path), "exec"), {})
    finally:
        loops.stop()
        signal.signal(signal.SIGUSR1, before)


@needs_monitoring
def test_code_that_is_made_anew_in_each_turn_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("for number in range(3):\n    abs(number)\n")
    loops = LoopTurns(lambda _: None, lambda: None)
    codes = []
    loops.begin()
    try:
        for _ in range(5):
            code = compile(path.read_text(), str(path), "exec")
            exec(code, {})
            codes.append(weakref.ref(code))
        del code
        gc.collect()
        assert loops.sees_turns
        assert [code() for code in codes] == [None] * 5
    finally:
        loops.stop()
