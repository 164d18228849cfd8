"""``vramlens.predict`` and what else takes a predicted device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vramlens

torch = pytest.importorskip("torch")
MIB = 2**20


def model() -> Any:
    return torch.nn.Sequential(
        torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512)
    )


def batch_of(count: int) -> Any:
    return torch.randn(count, 512, device="cuda")


def loss_of(net: Any, batch: Any) -> Any:
    return net(batch).square().mean()


def adam(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters)


def test_a_prediction_is_written_as_a_recording_and_leaves_this_process_alone(
    tmp_path: Path,
) -> None:
    is_available = torch.cuda.is_available()
    prediction = vramlens.predict(
        model, batch_of, loss_fn=loss_of, optimizer_fn=adam, batch=1024, cards=["1GiB"]
    )
    path = tmp_path / "predicted.vram"
    prediction.write(str(path))
    assert torch.cuda.is_available() == is_available
    assert prediction.cards[0].total_bytes == 1024 * MIB
    peak = vramlens.explain(str(path)).peak.heap
    assert peak.requested_bytes == prediction.peaks["requested_bytes"]


def test_strategies_are_predicted_without_times() -> None:
    table = vramlens.strategies(
        model, batch_of, loss_of, adam, batch=8192, device="predicted", names=["bf16", "compile"]
    )
    default, half = table["default"], table["bf16"]
    assert default.outcome == "done"
    assert default.step_ms is None
    assert half.peak_allocated_bytes is not None
    assert default.peak_allocated_bytes is not None
    assert half.peak_allocated_bytes < default.peak_allocated_bytes
    assert table["compile"].outcome == "not here"
    assert "Predicted without a GPU" in str(table)


def test_a_failing_function_is_a_usage_error() -> None:
    def fails(count: int) -> Any:
        raise ValueError("no data")

    with pytest.raises(vramlens.UsageError, match="no data"):
        vramlens.predict(model, fails, loss_of, adam, batch=2)


def test_a_budget_is_held_against_a_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nx = torch.ones(3 << 20, device='cuda')\n")
    (tmp_path / "vram.toml").write_text('[budget]\npeak_allocated = "4 MiB"\n')
    command = [sys.executable, "-m", "vramlens", "check", "train.py", "--predict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done.stderr
    assert "12.00 MiB" in done.stdout


def test_a_process_that_has_run_a_backward_pass_can_predict() -> None:
    program = """
import torch, vramlens
weight = torch.ones(3, requires_grad=True)
(weight * 2).sum().backward()
prediction = vramlens.predict(
    lambda: torch.nn.Linear(1024, 1024),
    lambda count: torch.randn(count, 1024, device="cuda"),
    lambda model, batch: model(batch).sum(),
    batch=4,
)
assert prediction.allocated_bytes > 8 << 20, prediction
"""
    pytest.importorskip("cloudpickle")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
