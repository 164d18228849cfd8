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


def test_a_pause_is_told_once_and_again_after_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps every second, one of which takes 5 s: a pause is one of more than 20."""
    clock = [0.0]
    monkeypatch.setattr("vramlens.live.turns.training_pause.monotonic", lambda: clock[-1])

    class Listener:
        told: list[float] = []  # noqa: RUF012

        def paused(self) -> None:
            self.told.append(clock[-1])

    listener = Listener()
    told = listener.told
    pause = TrainingPause(listener.paused)
    pause.stop()
    for now in (1.0, 2.0, 7.0, 8.0):
        clock.append(now)
        pause.stepped()
    for now in (10.0, 27.0, 29.0, 40.0):
        clock.append(now)
        pause.look()
    assert told == [29.0]
    pause.stepped()
    for now in (60.0, 200.0):
        clock.append(now)
        pause.look()
    assert told == [29.0, 200.0]
    alive = weakref.ref(listener)
    del listener
    assert alive() is None


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
