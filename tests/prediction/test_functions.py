"""``vramlens.predict`` and what else takes a predicted device."""

from __future__ import annotations

import json
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


def test_tune_says_of_each_card_what_the_prediction_says(tmp_path: Path) -> None:
    """The room beside the CUDA context, and what the prediction may be off, are in its recording."""
    sizes = [*range(384 * MIB, 2560 * MIB, 128 * MIB), 24 * 1024 * MIB]
    prediction = vramlens.predict(
        model, batch_of, loss_fn=loss_of, optimizer_fn=adam, batch=65536, cards=sizes
    )
    path = tmp_path / "predicted.vram"
    prediction.write(str(path))
    tuning = vramlens.load(str(path)).tune(cards=sizes)
    predicted = [card.fits for card in prediction.cards]
    assert [card.fits for card in tuning.as_recorded.cards] == predicted
    assert set(predicted) == {False, None, True}


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
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1, done.stderr
    assert "12.00 MiB" in done.stdout
    assert done.stdout.endswith("vramlens predict train.py\n")  # the recording is gone


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
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr


HOOKS = """
import sys
import torch
from torch import nn
def model_fn(): return nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512))
def make_batch(count): return torch.randn(count, 512, device="cuda")
def loss_fn(model, batch): return model(batch).square().mean()
def optimizer_fn(parameters): return torch.optim.AdamW(parameters)
if __name__ == "__main__":
    sys.exit("it would train")
"""


def answer_of(folder: Path, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "vramlens", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_scripts_functions_are_asked_with_any_batch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HOOKS)
    small, large = (
        answer_of(tmp_path, "predict", "--json", "--batch", count, "train.py")
        for count in ("8192", "16384")
    )
    grown = large["peak"]["allocated_bytes"] - small["peak"]["allocated_bytes"]
    assert 8192 * 1024 * 4 < grown < 8192 * 1024 * 4 * 6


def test_strategies_of_a_script_are_predicted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HOOKS)
    words = ("--json", "--batch", "8192", "--names", "bf16", "--budget", "2GiB", "train.py")
    answer = answer_of(tmp_path, "strategies", *words)
    default, half = answer["strategies"]
    assert half["peak_reserved_bytes"] < default["peak_reserved_bytes"]
    assert default["fits"]


def test_the_largest_batch_of_a_card_is_found_without_it() -> None:
    net = model()
    answers = [
        vramlens.find_batch_size(
            net, batch_of, loss_of, device="predicted", limit=limit, start=4096
        )
        for limit in ("l4", "a100-40", "12GiB")
    ]
    assert 1.5 < answers[1].size / answers[0].size < 2
    assert "NVIDIA L4" in answers[0].limited_by
    text = str(answers[0])
    assert f"{answers[0].reserved_bytes / 2**30:.2f} GiB reserved (" in text
    assert "  0.2 to 0.6 GiB of a card of l4 (21.96 GiB) also go to the CUDA context" in text
    assert "model and optimizer" not in text
    assert "measured" not in text
    for answer in answers:  # what is recommended is sure to fit, and the range begins with it
        assert answer.is_sure
        assert answer.low == answer.size < (answer.high or 0)
        lines = str(answer).splitlines()
        assert lines[0].startswith(f"The largest batch that is sure to fit is {answer.size:,}: ")
        assert f"between {answer.size:,} and {answer.high:,};" in lines[1]
        assert lines[-1] == f"next: batch_size={answer.size}"


def test_a_script_without_the_functions_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def model_fn(): return None\n")
    command = [sys.executable, "-m", "vramlens", "predict", "--batch", "2", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 3
    assert "it does not define make_batch, loss_fn" in done.stderr


def test_no_frame_of_vramlens_or_its_launcher_is_told_as_a_line(tmp_path: Path) -> None:
    script = """
import torch
from torch import nn
def model_fn(): return nn.Linear(4096, 4096)
def make_batch(count): return torch.randn(count, 4096, device="cuda")
def loss_fn(model, batch): return model(batch).square().mean()
def optimizer_fn(parameters): return torch.optim.AdamW(parameters)
"""
    (tmp_path / "functions.py").write_text(script)
    launcher = "import sys\nfrom vramlens.cli.main import main\nsys.exit(main())\n"
    (tmp_path / "vramlens_launcher").write_text(launcher)
    command = [sys.executable, "vramlens_launcher", "predict", "functions.py", "--batch", "64"]
    done = subprocess.run(
        [*command, "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    lines = answer["peak"]["by_line"]
    assert {Path(line["file"]).name for line in lines} == {"functions.py"}
    assert lines[0]["function"] == "optimizer_fn"
    assert "launcher" not in done.stdout
    assert "vramlens/" not in done.stdout.replace("vramlens/1", "")
