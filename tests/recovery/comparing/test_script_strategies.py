"""Strategies put into a script from outside: what the script would ask for with the edit in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SCRIPT = """
import contextlib, sys
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

edit = sys.argv[1]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))

    def forward(self, x):
        return x + self.layers(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.head = nn.Linear(256, 3000)

    def forward(self, x):
        for block in self.blocks:
            recompute = edit == "checkpoint" and self.training
            x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        return self.head(x)


model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=edit == "fused" or None)
for _ in range(100):
    x = torch.randn(4096, 256, device="cuda")
    target = torch.randint(0, 3000, (4096,), device="cuda")
    around = torch.autocast("cuda", torch.bfloat16) if edit == "bf16" else contextlib.nullcontext()
    with around:
        loss = nn.functional.cross_entropy(model(x), target)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
COMPARE = """
import json, sys
from vramlens.prediction.own_process import in_a_process
from vramlens.prediction.predicted_run import Question, answer
from vramlens.prediction.script import run_script
from vramlens.recovery.comparing.script_strategies import script_strategies
import torch

path = sys.argv[1]
names = ["checkpoint", "bf16", "fused", "channels_last"]
table = script_strategies(path, ["nothing"], steps=3, names=names)
edited = {
    edit: in_a_process(lambda: run_script(path, [edit], Question(), 3)) for edit in names[:3]
}
print(json.dumps({
    "table": table.to_json(),
    "text": str(table),
    "edited": {edit: answer(run, Question()).allocated_bytes for edit, run in edited.items()},
}))
"""


def test_a_strategy_from_outside_is_the_edit(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, str(path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    compared = json.loads(done.stdout.splitlines()[-1])
    rows = {row["name"]: row for row in compared["table"]["strategies"]}
    for name, edited_bytes in compared["edited"].items():
        assert rows[name]["peak_allocated_bytes"] == pytest.approx(edited_bytes, rel=0.002), name
    assert rows["bf16"]["peak_allocated_bytes"] < rows["default"]["peak_allocated_bytes"]
    assert rows["channels_last"]["why"] == "no 2-d convolution"
    assert compared["table"]["batch"] is None
    assert "The script as it is, 3 steps" in compared["text"]


def test_a_script_that_cannot_be_predicted_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\ntorch.ones(3, device='cuda') @ torch.ones(4, device='cuda')")
    done = subprocess.run(
        [sys.executable, "-m", "vramlens", "strategies", str(path)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 3
    assert "train.py:2: could not be predicted" in done.stderr
    assert not done.stdout
