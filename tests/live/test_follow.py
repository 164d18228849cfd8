"""``vramlens run --leaks``: the report of a program that runs as it is; and who owns which block, for a recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402
from capture.programs import run_program  # noqa: E402
from vramlens.live.follow import OWNERS_SCHEMA, owners_of  # noqa: E402

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

main()
"""


def test_the_report_comes_at_the_end(tmp_path: Path) -> None:
    done = run_program(tmp_path, LEAKS, "--leaks")
    assert done.returncode == 0
    assert done.stdout == "done\n"
    assert "LEAK proven: 4.30 KiB a step" in done.stderr
    assert "Trainer.history, a list (train.py:15 self.history.append(" in done.stderr
    assert "after step 6; what its functions held is gone by now" in done.stderr


def test_a_program_without_steps_is_told(tmp_path: Path) -> None:
    done = run_program(tmp_path, "import torch\nprint(torch.ones(2).sum().item())\n", "--leaks")
    assert done.stdout == "2.0\n"
    assert "--leaks: no step has ended" in done.stderr


def test_owners_of_all_live_storages() -> None:
    kept: list[Any] = []
    watch = vramlens.LeakWatch()
    for _ in range(8):
        kept.append(torch.zeros(1000))
        watch.step()
    found = owners_of(watch, "cpu")
    assert found is not None
    assert json.loads(json.dumps(found))["schema"] == OWNERS_SCHEMA
    rows = {row[1]: row for row in found["storages"]["rows"]}
    for step, tensor in enumerate(kept, 1):
        _, _, size, owner, born = rows[tensor.untyped_storage().data_ptr()]
        assert (size, born) == (4000, step)
        assert found["owners"][owner]["name"] == "kept"
    assert found["owners"][0]["bytes_per_step"] == 4000
    assert found["leaks"][0]["owner"]["name"] == "kept"
