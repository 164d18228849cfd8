"""What is taken for results whose size hangs on values that nobody knows, and how that is said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SIZES = """
import torch
x = torch.randn(4096, 64, device="cuda")
assert x[x > 0].shape == (4096 * 64,)
assert torch.unique(x).shape == (4096 * 64,)
assert torch.unique(x, dim=0).shape == (4096, 64)
counts = (x.abs().sum(1) * 9).long()
assert torch.bincount(counts).shape == (1,)
assert torch.bincount(x.argmax(1)).shape == (64,)
assert torch.repeat_interleave(x, counts, dim=0).shape == (4096, 64)
for expert in range(3):
    rows, _ = torch.where(x.topk(2, dim=1).indices == expert)
    assert rows.shape == (128,)
y = torch.rand(2048, 1024, device="cuda")
assert y[y < 0.5].numel() != 1 << 21
"""
SMALLER = "the real size may be smaller, and the range includes that"
LARGER = "the real size may be larger, and the range leaves that out"


def test_what_is_assumed_of_sizes_is_said_for_each_operator(tmp_path: Path) -> None:
    path = tmp_path / "sizes.py"
    path.write_text(SIZES)
    command = [sys.executable, "-m", "vramlens", "predict", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["prediction"]["not_modelled"]
    assert [row["what"] for row in rows if row["bytes"] is None] == [
        f"assumed for x[mask] (once): the mask selects everything; {SMALLER}",
        f"assumed for unique (once): no two numbers are equal; {SMALLER}",
        f"assumed for unique (once): no two rows are equal; {SMALLER}",
        f"assumed for bincount (once): all numbers are 0; {LARGER} (minlength=N says it)",
        f"assumed for bincount (once): every class or choice occurs; {SMALLER}",
        "assumed for repeat_interleave (once): every element is repeated once;"
        f" {LARGER} (output_size=N says it)",
        "assumed for nonzero or where (3 times): the mask selects an even share of the choices (of n"
        " experts 1 in n), or the places that were set in it; the real size may be from nothing to"
        " twice that, and the range includes both",
        "assumed for x[mask] (once): as many random numbers are selected as the script's limit lets"
        " through; the real size may differ a little",
    ]


def test_an_assumption_is_not_called_left_out(tmp_path: Path) -> None:
    path = tmp_path / "sizes.py"
    path.write_text("import torch\nx = torch.randn(9, 9, device='cuda')\nx[x > 0]\n")
    command = [sys.executable, "-m", "vramlens", "predict", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "\n  assumed for x[mask] (once): the mask selects everything; the" in done.stdout
    assert "not included" not in done.stdout
