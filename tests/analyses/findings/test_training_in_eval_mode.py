"""A model that is trained in eval mode, as nobody called train() after an evaluation, beside one that is
evaluated with gradients.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, MadeRun, finding_of

USER = "/home/user/train.py"


def called_at(line: int) -> tuple[tuple[str, int, str], ...]:
    """A layer's frames, in a model that a line calls."""
    return (
        (f"{TORCH}/nn/modules/linear.py", 134, "forward"),
        (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl"),
        (USER, line, "epoch"),
    )


FRAMES = {
    "weights": ((f"{TORCH}/nn/modules/module.py", 900, "_apply"),),
    "train": called_at(20),
    "validate": called_at(30),
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 21, "epoch")),
    "optimizer": (
        (f"{TORCH}/optim/adamw.py", 600, "_single_tensor_adamw"),
        (f"{TORCH}/optim/optimizer.py", 480, "step"),
        (USER, 22, "epoch"),
    ),
}


def trains(run: MadeRun, steps: int) -> None:
    """Steps with a forward pass each, which its backward pass gives up."""
    for _ in range(steps):
        activations = [run.asks("train", 10, module=f"model.l{layer}") for layer in range(10)]
        for activation in reversed(activations):
            gradient = run.asks("backward", 5)
            run.frees(activation, gradient)
        run.frees(run.asks("optimizer", 5))


@pytest.mark.parametrize(
    ("line", "evaluates", "edit"),
    [
        ("train", True, "call model.train()"),
        ("train", False, "torch.no_grad()"),  # a line that both phases call, where that is missing
        ("validate", True, "torch.no_grad()"),
    ],
)
def test_what_runs_in_eval_mode_with_gradients(
    tmp_path: Path, line: str, evaluates: bool, edit: str
) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 50, name="model.l0.weight", kind="parameter", use="stepped")
    trains(run, 3)
    for layer in range(10 if evaluates else 0):
        run.frees(run.asks("validate", 10, module=f"model.l{layer} [no grad]"))
    for layer in range(10):
        run.asks(line, 40, module=f"model.l{layer} [eval+grad]")
    finding = finding_of(run.fails(line, 60, tmp_path), "eval_with_grad")
    assert finding is not None
    assert edit in (finding.fix or "")
    assert finding.place is not None
    assert finding.place.line == (20 if line == "train" else 30)
