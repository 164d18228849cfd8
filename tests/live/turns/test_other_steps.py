"""``vramlens run --leaks`` of programs with neither an optimizer nor a model."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest

from vramlens.live.turns.moments import Moments

torch = pytest.importorskip("torch")

from support.programs import run_program  # noqa: E402

LOOP = """
import torch

class Index:
    def __init__(self):
        self.entries = {}

    def add(self, number):
        self.entries[number] = torch.randn(64, 128) * 2

def gather():
    samples = []
    for number in range(40):
        samples.append(torch.randn(64, 128) * 2)
    return torch.stack(samples).sum()

def main():
    index = Index()
    for number in range(40):
        index.add(number)

gather()
main()
"""


def test_a_loop_is_the_unit_and_what_a_loop_gathers_for_later_is_no_leak(tmp_path: Path) -> None:
    told = " ".join(run_program(tmp_path, LOOP, "--leaks").stderr.split())
    assert "LEAK proven: 32.00 KiB per step" in told
    assert "Index.entries, a dict (train.py:9 self.entries[number] = " in told
    assert "a step is a turn of the loop at train.py:19." in told
    assert "samples" not in told


GATHERED = LOOP.replace("\nmain()\n", "\n").replace("gather()\n", "print(gather())\n")


def test_what_a_loop_gathers_and_the_program_uses_is_possible_at_most(tmp_path: Path) -> None:
    told = " ".join(run_program(tmp_path, GATHERED, "--leaks").stderr.split())
    assert "No leak proven, 1 possible: samples" in told
    assert "line 15 uses samples after the loop: it may be the loop's result" in told


WORKERS = """
import time
import torch
from concurrent.futures import ThreadPoolExecutor

answers = {}

def answer(number):
    answers[number] = torch.randn(64, 128) * 2
    time.sleep(0.02)

with ThreadPoolExecutor(1) as pool:
    list(pool.map(answer, range(120)))
"""


def test_time_is_the_unit_where_other_threads_work(tmp_path: Path) -> None:
    told = " ".join(run_program(tmp_path, WORKERS, "--leaks").stderr.split())
    assert "LEAK proven" in told
    assert "answers, a dict (train.py:9 answers[number] = torch.randn(64, 128) * 2)" in told
    assert "a step is 0.1 s in which the program ran." in told


def test_only_a_stretch_in_which_the_program_ran_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramlens.live.turns.moments.SECONDS", 0.002)
    monkeypatch.setattr("vramlens.live.turns.moments.process_time", lambda: 0.0)
    monkeypatch.setattr(gc, "get_count", lambda: counts[-1])
    counts = [(1, 0, 0)]
    passed: list[int] = []
    moments = Moments(lambda: passed.append(1))
    time.sleep(0.05)
    assert passed == []
    counts.append((2, 0, 0))
    limit = time.monotonic() + 300
    while not passed and time.monotonic() < limit:
        time.sleep(0.002)
    moments.stop()
    assert passed == [1]


GENERATOR = """
import torch

def smooth(frames):
    kept = []
    for frame in frames:
        kept.append(frame)
        yield torch.stack(kept[-3:]).mean(0)

def main():
    detector = torch.nn.Linear(128, 1)
    with torch.no_grad():
        for frame in smooth(torch.rand(64, 128) for _ in range(50)):
            detector(frame)
    print("done")

main()
print("and on")
"""


def test_a_generator_that_only_a_loop_held_is_named_when_the_loop_has_ended(tmp_path: Path) -> None:
    told = " ".join(run_program(tmp_path, GENERATOR, "--leaks").stderr.split())
    assert "LEAK likely: 32.00 KiB per step" in told
    assert "kept, a list (train.py:7 kept.append(frame))" in told
    assert "and is gone now: it is unknown whether it would have stayed" in told


EPILOGUES = """
import time
import torch

class Index:
    def __init__(self):
        self.entries = []

    def add(self):
        self.entries.append(torch.randn(64, 128) * 2)

def main():
    index = Index()
    for number in range(60):
        index.add()
{end}
main()
"""
SHUTDOWN = """
    for thread in ("first", "second"):
        print("ends", thread)
    for thread in ("first", "second"):
        print("ended", thread)
"""
EVALUATION = """
    for batch in range(12):
        print(torch.randn(64, 128).sum())
"""


@pytest.mark.parametrize("end", [SHUTDOWN, EVALUATION], ids=["shutdown", "evaluation"])
def test_the_turns_of_a_long_loop_stay_the_steps(tmp_path: Path, end: str) -> None:
    """The few turns of a loop after it do not discard them."""
    done = run_program(tmp_path, EPILOGUES.replace("{end}", end), "--leaks")
    told = " ".join(done.stderr.split())
    assert "LEAK proven: 32.00 KiB per step" in told
    assert "Index.entries, a list (train.py:10 self.entries.append(" in told
    assert "a step is a turn of the loop at train.py:14." in told


PREPARED = EPILOGUES.replace(
    "    index = Index()\n", "    index = Index()\n    for path in range(60):\n        abs(path)\n"
).replace("range(60):\n        index", "range(20):\n        index")


def test_a_loop_that_is_long_enough_counts_after_a_longer_one(tmp_path: Path) -> None:
    told = " ".join(run_program(tmp_path, PREPARED.replace("{end}", ""), "--leaks").stderr.split())
    assert "LEAK proven: 32.00 KiB per step" in told
    assert "a step is a turn of the loop at train.py:16." in told


LONG_EPILOGUE = """
    for batch in range(40):
        print(torch.randn(64, 128).sum())
"""


READ = """
    for batch in range(40):
        print(index.entries[batch].sum())
"""


def test_growth_in_a_loop_is_told_however_long_its_epilogue_is(tmp_path: Path) -> None:
    """Where the epilogue may read it, as possible."""
    done = run_program(tmp_path, EPILOGUES.replace("{end}", READ), "--leaks")
    told = " ".join(done.stderr.split())
    assert "No leak proven, 1 possible: Index.entries (train.py:10), a list: 32.00 KiB per" in told
    assert "the loop that it grew in has ended: it may be its result" in told
    assert "a step is a turn of the loop at train.py:14." in told


def test_growth_that_nothing_reads_is_a_leak_also_when_its_loop_has_ended(tmp_path: Path) -> None:
    done = run_program(tmp_path, EPILOGUES.replace("{end}", LONG_EPILOGUE), "--leaks")
    told = " ".join(done.stderr.split())
    assert "LEAK likely: 32.00 KiB per step" in told
    assert "not proven: the loop that it grew in has ended, but nothing reads its entries" in told


@pytest.mark.parametrize(
    "end",
    [
        f"    index.entries.clear()\n{LONG_EPILOGUE}",
        f"{LONG_EPILOGUE}\n    index.entries.clear()\n",
    ],
    ids=["before", "after"],
)
def test_what_is_emptied_around_a_long_epilogue_is_no_leak(tmp_path: Path, end: str) -> None:
    done = run_program(tmp_path, EPILOGUES.replace("{end}", end), "--leaks")
    assert done.stderr.startswith("No leak:")


BY_HAND = """
import torch

class Trainer:
    def __init__(self):
        self.weight = torch.randn(64, 64, requires_grad=True)
        self.recent = []

    def step(self):
        loss = (self.weight @ torch.randn(64, 64)).square().mean()
        loss.backward()
        with torch.no_grad():
            self.weight -= 0.1 * self.weight.grad
            self.weight.grad = None
        self.recent.append(self.weight.detach().clone())

def main():
    trainer = Trainer()
    for number in range(24):
        trainer.step()

main()
"""


def test_a_loop_that_updates_by_hand_is_followed_by_its_turns(tmp_path: Path) -> None:
    told = " ".join(run_program(tmp_path, BY_HAND, "--leaks").stderr.split())
    assert "LEAK proven: 16.00 KiB per step" in told
    assert "Trainer.recent, a list (train.py:15 self.recent.append(" in told
    assert "a step is a turn of the loop at train.py:19." in told


UNSTEPPED = """
import time
import torch

kept = []
optim = None  # a script that speaks of an optimizer, and steps none
for number in range(70):
    kept.append(torch.randn(64, 64) * number)
    time.sleep(0.1)
"""


def test_time_is_the_unit_where_no_optimizer_steps_for_seconds(tmp_path: Path) -> None:
    told = " ".join(run_program(tmp_path, UNSTEPPED, "--leaks").stderr.split())
    assert "kept (train.py:8), a list: 16.00 KiB" in told or "kept, a list (train.py:8 " in told
    assert "a step is 0.1 s in which the program ran." in told


EMBEDDED = """
import torch

def embed(encoder, count):
    vectors = []
    for number in range(count):
        vectors.append(encoder(torch.randn(64, 64)).detach())
    return torch.cat(vectors)

print(embed(torch.nn.Linear(64, 64), 60).shape)
"""


def test_what_a_model_computes_for_a_use_after_its_loop_is_possible_at_most(
    tmp_path: Path,
) -> None:
    """A step is a call of the model here: nothing is trained."""
    told = " ".join(run_program(tmp_path, EMBEDDED, "--leaks").stderr.split())
    assert "LEAK" not in told
    assert "a step is a call of Linear" in told
