"""``vramlens run --leaks`` of programs that train first, and then do something else."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from support.programs import run_program  # noqa: E402
from vramlens.live.turns.training_pause import TrainingPause  # noqa: E402

PROGRAM = """
import time
import torch
from vramlens.live.turns import training_pause

training_pause._TIMES_LONGEST = 0  # a step that a busy machine made long says nothing

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []

def train(steps, leaks=False):
    for step in range(steps):
        loss = model(torch.ones(64, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if leaks:
            kept.append(torch.ones(64, 64) * 2)

class Service:
    def __init__(self):
        self.sessions = {}

    def answer(self, number):
        with torch.inference_mode():
            answer = model(torch.ones(64, 64) * number)
        time.sleep(0.04)
        return answer

    def keep(self, number):
        self.sessions[f"user {number}"] = self.answer(number)

def evaluate(service, count):
    answers = []
    for number in range(count):
        answers.append(service.answer(number))
    print(torch.cat(answers).sum())

def main():
    service = Service()
"""


class Listener:
    """Hears of pauses, at times of its own clocks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed = self.computed = 0.0
        self.told: list[float] = []
        self.can_be_told = True
        module = "vramlens.live.turns.training_pause"
        monkeypatch.setattr(f"{module}.monotonic", lambda: self.passed)
        monkeypatch.setattr(f"{module}.process_time", lambda: self.computed)
        self.pause = TrainingPause(self.paused)
        self.pause.stop()

    def paused(self) -> bool:
        if self.can_be_told:
            self.told.append(self.passed)
        return self.can_be_told

    def step_at(self, *times: float) -> None:
        for self.passed in times:
            self.pause.stepped()

    def look_at(self, *times: float) -> None:
        for self.passed in times:
            self.pause.look()


def test_a_pause_is_told_once_and_again_after_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps every second, one of which takes 5 s: a pause is one of more than 20."""
    listener = Listener(monkeypatch)
    listener.step_at(1.0, 2.0, 7.0, 8.0)
    listener.look_at(10.0, 27.0, 29.0, 40.0)
    assert listener.told == [29.0]
    listener.pause.stepped()
    listener.look_at(60.0, 200.0)
    assert listener.told == [29.0, 200.0]


def test_a_pause_does_not_keep_who_hears_of_it() -> None:
    class Deaf:
        def paused(self) -> None:
            """Does nothing."""

    deaf = Deaf()
    pause = TrainingPause(deaf.paused)
    alive = weakref.ref(deaf)
    del deaf
    assert alive() is None
    pause.stop()


def test_a_pause_that_comes_while_a_step_ends_is_told_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listener = Listener(monkeypatch)
    listener.step_at(0.1, 0.2)
    listener.can_be_told = False
    listener.look_at(2.0)
    listener.can_be_told = True
    listener.look_at(2.1)
    assert listener.told == [2.1]


def test_what_the_watch_does_at_a_steps_end_is_no_time_between_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search took 5 s."""
    listener = Listener(monkeypatch)
    listener.step_at(0.1)
    listener.passed = 5.1
    listener.pause.goes_on()
    listener.step_at(5.2)
    listener.look_at(5.6, 6.0)
    assert listener.told == [6.0]


def test_a_step_that_had_to_wait_does_not_make_a_pause_longer_that_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine one of many steps took 2 s, of which it computed 0.01."""
    listener = Listener(monkeypatch)
    for listener.computed, passed in ((0.01, 0.1), (0.02, 2.1), (0.03, 2.2)):
        listener.step_at(passed)
    listener.computed = 0.43
    listener.look_at(2.6, 5.0)
    assert listener.told == []
    listener.computed = 0.6
    listener.look_at(5.1)
    assert listener.told == [5.1]


def _told(tmp_path: Path, *statements: str) -> str:
    main = "".join(f"    {statement}\n" for statement in statements)
    done = run_program(tmp_path, f"{PROGRAM}{main}\nmain()\n", "--leaks")
    assert done.returncode == 0
    return " ".join(done.stderr.split())


def test_what_grows_in_the_service_after_the_training_is_a_leak(tmp_path: Path) -> None:
    told = _told(tmp_path, "train(20)", "for number in range(90):", "    service.keep(number)")
    assert "LEAK proven: about 16.00 KiB per step" in told
    assert "Service.sessions, a dict (train.py:32 self.sessions[f" in told
    assert "after the optimizer's last step, a step is a call of Linear" in told


def test_an_evaluation_after_the_training_keeps_its_results(tmp_path: Path) -> None:
    told = _told(tmp_path, "train(20)", "evaluate(service, 90)")
    assert "LEAK" not in told


@pytest.mark.parametrize(
    ("rest", "is_growth"),
    [
        ("kept.extend(torch.ones(1000, 65 + number) for number in range(40))", True),
        ("kept.extend(torch.ones(1000, 65) for number in range(40)); raise OSError", False),
    ],
    ids=["to the end", "a step that broke off"],
)
def test_what_grew_after_the_last_step_unwatched_is_never_no_leak(
    tmp_path: Path, rest: str, is_growth: bool
) -> None:
    """However fast the machine: the rest of the program was over before it was a pause."""
    program = PROGRAM.replace("_TIMES_LONGEST = 0", "_LEAST_S = 1000.0")
    done = run_program(tmp_path, f"{program}    train(20)\n    {rest}\n\nmain()\n", "--leaks")
    told = " ".join(done.stderr.split())
    assert ("No leak: 19 steps watched" in told) is not is_growth
    assert ("Cannot tell: 12.89 MiB came after step 19, the last" in told) is is_growth


def test_a_leak_of_the_training_is_told_whatever_follows_it(tmp_path: Path) -> None:
    told = _told(tmp_path, "train(20, leaks=True)", "evaluate(service, 60)")
    assert "LEAK proven: 16.00 KiB per step" in told
    assert "in 20 steps" in told
    assert "kept, a list (train.py:19 kept.append" in told


def test_training_goes_on_as_if_it_had_not_paused(tmp_path: Path) -> None:
    told = _told(
        tmp_path,
        "train(20, leaks=True)",
        "evaluate(service, 60)",
        "train(20, leaks=True)",
    )
    assert "LEAK proven: 16.00 KiB per step" in told
    assert "in 40 steps" in told


ENSEMBLE = """
import copy
import torch

def main():
    model, members = torch.nn.Linear(64, 64), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for cycle in range(10):
        for step in range({steps}):
            loss = model(torch.ones(64, 64)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        members.append(copy.deepcopy(model))
    print({use})

main()
"""


@pytest.mark.parametrize(
    ("steps", "use", "is_result"),
    [
        (8, "sum(member(torch.ones(1, 64)).sum() for member in members)", True),
        (8, "len(members)", False),
        (1, "sum(member(torch.ones(1, 64)).sum() for member in members)", False),
    ],
    ids=["of each cycle", "unused", "of each step"],
)
def test_snapshots_that_are_used_after_the_training_are_its_result(
    tmp_path: Path, steps: int, use: str, is_result: bool
) -> None:
    told = run_program(tmp_path, ENSEMBLE.format(steps=steps, use=use), "--leaks").stderr
    assert ("LEAK" not in told) is is_result
    assert ("it may be the loop's result" in " ".join(told.split())) is is_result
