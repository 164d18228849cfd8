"""``vramlens run --leaks``: the report of a program that runs as it is; and who owns which
block, for a recording.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402
from support.programs import run_program  # noqa: E402
from vramlens.live import follow  # noqa: E402
from vramlens.live.follow import OWNERS_SCHEMA, LeakFollower, owners_of  # noqa: E402
from vramlens.live.holder.route import Route, size_of  # noqa: E402
from vramlens.live.unit_watch import UnitWatch  # noqa: E402

LEAKS = """
import torch

class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(100, 10)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.history = []

    def step(self):
        loss = self.model(torch.randn(10, 100)).tanh().sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.history.append(self.model(torch.randn(10, 100)).tanh())

def main():
    trainer = Trainer()
    for _ in range(9):
        trainer.step()
    print("done")
    raise ValueError("bad batch")

main()
"""


def test_the_report_comes_at_the_end_and_keeps_the_statement_when_the_program_crashes(
    tmp_path: Path,
) -> None:
    """The exception that ended it holds its variables by then; what is told is who keeps them,
    not the exception.
    """
    done = run_program(tmp_path, LEAKS, "--leaks")
    assert done.returncode == 1
    assert done.stdout == "done\n"
    report = " ".join(done.stderr.split())  # lines break at 80 columns
    assert "LEAK proven: 4.30 KiB per step, " in report
    assert "Trainer.history, a list (train.py:15 self.history.append(" in report
    assert "main() (train.py:22), where the program ended > variable trainer: Trainer" in report
    assert "keeps the autograd graph of every step" in report


def test_the_statement_of_a_module_that_crashed_is_told(tmp_path: Path) -> None:
    """Python has taken ``__file__`` from the script's module by the time of the report."""
    body = """
import torch
kept_batches = []
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(14):
    batch = torch.randn(64, 64)
    model(batch).sum().backward()
    kept_batches.append(batch)
    optimizer.step()
raise ValueError("bad batch")
"""
    done = run_program(tmp_path, body, "--leaks")
    assert done.returncode == 1
    assert "kept_batches, a list (train.py:9 kept_batches.append(batch))" in done.stderr


class Followed:
    """What the follower is told of a program, in this process: steps, and its end."""

    def __init__(self) -> None:
        self.follower = LeakFollower()
        self.follower.step_ended(0)

    def report(self, capsys: pytest.CaptureFixture[str]) -> str:
        self.follower.tell()
        return capsys.readouterr().err


EPOCH: dict[str, list[Any]] = {"outputs": []}


def test_a_list_that_was_emptied_is_no_problem(capsys: pytest.CaptureFixture[str]) -> None:
    program = Followed()
    for step in range(1, 10):
        EPOCH["outputs"].append(torch.zeros(1000))
        if step == 8:
            for outputs in EPOCH.values():
                outputs.clear()
        program.follower.step_ended(step)
    for outputs in EPOCH.values():
        outputs.clear()
    text = program.report(capsys)
    assert "after step 6 of 9; what its functions held is gone by now" in text
    assert "\nNo leak: 9 steps watched, " in text
    assert "\nnot a problem: EPOCH['outputs']" in text
    assert "the program empties it from time to time" in " ".join(text.split())
    assert "LEAK" not in text
    assert "Fix:" not in text


def test_one_that_grew_to_the_last_step_is_likely(capsys: pytest.CaptureFixture[str]) -> None:
    program = Followed()

    def train() -> None:
        kept = []
        for step in range(1, 10):
            kept.append(torch.zeros(1000))
            program.follower.step_ended(step)

    train()
    text = program.report(capsys)
    assert "LEAK likely: 3.91 KiB per step" in text
    assert "kept, a list" in text
    assert "it grew until step 9, the last" in text


FILLED: list[Any] = []


def test_what_is_still_there_is_judged_by_the_last_look(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A table that a look found growing is full by now; that is no growth until the end."""
    program = Followed()
    for step in range(1, 61):
        if step < 20:
            FILLED.append(torch.zeros(1000))
        program.follower.step_ended(step)
    text = program.report(capsys)
    FILLED.clear()
    assert "LEAK" not in text
    assert "is gone by now" not in text
    assert "it has not grown since step 19" in " ".join(text.split())


def test_what_an_evaluation_follows_is_possible(capsys: pytest.CaptureFixture[str]) -> None:
    """The loop that fills it has ended, as if it were full: nobody knows which."""
    program = Followed()
    for step in range(1, 61):
        if step < 54:
            FILLED.append(torch.zeros(1000))
        program.follower.step_ended(step)
    text = " ".join(program.report(capsys).split())
    FILLED.clear()
    assert "No leak proven, 1 possible: FILLED" in text
    assert "it has not grown since step 53: it is full, or what fills it has ended" in text


GROWING: list[Any] = []


def test_who_asks_meanwhile_is_told_by_the_thread_that_steps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = Followed()
    tellers: list[int] = []
    tell = program.follower.tell
    program.follower.tell = lambda: (tellers.append(threading.get_ident()), tell())  # type: ignore[method-assign]
    asking = threading.Thread(target=program.follower.tell_after_step)
    for step in range(1, 31):
        GROWING.append(torch.zeros(1000))
        if step == 20:
            asking.start()
            while not program.follower._asked:
                time.sleep(0.001)
        program.follower.step_ended(step)
        if step == 20:
            asking.join()
    assert tellers == [threading.get_ident()]
    assert "LEAK proven: 3.91 KiB per step" in capsys.readouterr().err


def test_where_no_step_ends_who_asks_tells_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Followed()
    tellers: list[int] = []
    monkeypatch.setattr(follow, "_STEP_COMES_WITHIN_S", 0.01)
    monkeypatch.setattr(program.follower, "tell", lambda: tellers.append(threading.get_ident()))
    program.follower.tell_after_step()
    program.follower.step_ended(1)
    assert tellers == [threading.get_ident()]


class Circle:
    """A trainer and its callbacks know one another, as in most training loops."""

    def __init__(self) -> None:
        self.me = self
        self.kept: list[torch.Tensor] = []


def test_what_a_function_left_in_a_circle_has_the_owner_that_it_had(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also in the recording, where its storages were when its owner was there."""
    program = Followed()
    addresses = []

    def train() -> None:
        trainer = Circle()
        for step in range(1, 10):
            trainer.kept.append(torch.zeros(1000))
            addresses.append(trainer.kept[-1].untyped_storage().data_ptr())
            program.follower.step_ended(step)

    gc.disable()
    try:
        train()
        text = program.report(capsys)
        owners = program.follower.owners("cpu")
    finally:
        gc.enable()
    assert "LEAK likely: 3.91 KiB per step" in text
    assert "Circle.kept, a list" in text
    assert owners is not None
    (owner,) = owners["owners"]
    assert (owner["name"], owner["verdict"]) == ("Circle.kept", "likely")
    rows = {row[1] for row in owners["storages"]["rows"] if row[3] == 0}
    assert set(addresses[:6]) <= rows
    assert owners["time_us"] < time.time_ns() // 1000


def test_routes_lead_through_names_only() -> None:
    class Box:
        pass

    box: Any = Box()
    box.table = {"a": [0, [1, 2, 3]]}
    function = (__file__, sys._getframe().f_code.co_firstlineno, sys._getframe().f_code.co_name)
    route = Route("", function, "box", (("attribute", "table"), ("key", "'a'"), ("index", "1")))
    assert size_of(route.find()) == 3
    del box.table["a"]
    assert route.find() is None
    assert size_of(Route(__name__, None, "EPOCH", (("key", "'outputs'"),)).find()) == 0
    assert Route("no.such.module", None, "x", ()).find() is None


def test_another_unit_begins_while_a_thread_ends_a_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker's first call of a model, while the main thread ends a turn of its loop."""
    follower = LeakFollower()
    step = UnitWatch.step

    def step_and_begin_anew(watch: UnitWatch, caller: types.FrameType) -> None:
        follower._begin_anew()
        step(watch, caller)

    frame = sys._getframe()
    follower._unit_ended(frame)
    first = follower._watch
    monkeypatch.setattr(UnitWatch, "step", step_and_begin_anew)
    follower._unit_ended(frame)
    monkeypatch.undo()
    assert follower._watch is first
    follower._unit_ended(frame)
    assert follower._watch is not first
    for watch in follower._watches:
        watch.stop()
    assert capsys.readouterr().err == ""


def test_a_program_without_steps_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    LeakFollower().tell()
    first, *further = capsys.readouterr().err.splitlines()
    assert first.startswith("vramlens: --leaks: no step has ended")
    assert further
    assert max(map(len, (first, *further))) <= 80


def test_owners_of_all_live_storages() -> None:
    kept: list[Any] = []
    watch = vramlens.LeakWatch()
    for _ in range(8):
        kept.append(torch.zeros(1000))
        watch.step()
    owned = watch.owned()
    assert owned is not None
    found = owners_of(*owned, 0, "cpu")
    assert found is not None
    assert json.loads(json.dumps(found))["schema"] == OWNERS_SCHEMA
    rows = {row[1]: row for row in found["storages"]["rows"]}
    for step, tensor in enumerate(kept, 1):
        _, _, size, owner, born = rows[tensor.untyped_storage().data_ptr()]
        assert (size, born) == (4000, step)
        assert found["owners"][owner]["name"] == "kept"
    assert found["owners"][0]["bytes_per_step"] == 4000
    assert found["leaks"][0]["owner"]["name"] == "kept"
