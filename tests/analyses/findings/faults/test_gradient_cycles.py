"""Graphs in the gradients of backward(create_graph=True), which no step frees, beside steps that do."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/train.py"
BACKWARD: Frame = (f"{TORCH}/_tensor.py", 600, "backward")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "load"),),
    "layer": (
        (f"{TORCH}/nn/modules/linear.py", 134, "forward"),
        (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl"),
        (USER, 20, "step"),
    ),
    "backward": (BACKWARD, (USER, 30, "step")),
    "probe": (BACKWARD, (USER, 50, "probe")),
    "step": ((f"{TORCH}/optim/adam.py", 300, "step"), (USER, 62, "main")),
}
SHAPE = "float32[1024, 10240]"


@pytest.mark.parametrize(
    ("text", "kept", "is_told"),
    [
        ("loss.backward(create_graph=True)", 40, True),
        ("loss.backward(inputs=params, create_graph=True)", 40, True),
        ("self.manual_backward(loss, create_graph=True)", 40, True),
        ("loss.backward(create_graph=is_second_order)", 40, True),
        ("loss.backward()", 40, False),
        ("loss.backward(create_graph=False)", 40, False),
        ("loss.backward()  # not loss.backward(create_graph=True)", 40, False),
        ("loss.backward(create_graph=True)", 1, False),  # .grad was set to None
    ],
)
def test_what_earlier_probes_left(tmp_path: Path, text: str, kept: int, *, is_told: bool) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 100, name="model.weight", kind="parameter")
    for _ in range(6):
        run.asks("probe", kept, name=f"{SHAPE} tensor", shape=SHAPE, in_graph=True)
        run.asks("probe", kept, name=f"grad[{SHAPE} tensor]", kind="gradient", shape=SHAPE)
        passing = run.asks("layer", 30, module="model")
        run.frees(run.asks("backward", 1), passing)
        run.frees(run.asks("step", 1))
    answer = run.fails("probe", 60, tmp_path, source={(USER, 50): text})
    finding = finding_of(answer, "gradient_cycles")
    assert (finding is not None) == is_told
    if finding is not None:
        assert answer.findings[0] == finding
        assert finding.bytes == 5 * 2 * 40 * MIB  # the sixth is of the step that runs
        assert finding.place is not None
        assert finding.place.line == 50
        assert (finding.fix or "").startswith("set each .grad to None")
        assert "torch.autograd.grad(loss, parameters, create_graph=True)" in (finding.fix or "")


def test_without_gradients_that_have_graphs(tmp_path: Path) -> None:
    """What was made before training, and what nobody named, is no graph."""
    run = MadeRun(FRAMES)
    run.asks("weights", 20, name="model.weight", kind="parameter")
    run.asks("weights", 400, name=f"{SHAPE} tensor", shape=SHAPE)
    for _ in range(6):
        passing = run.asks("layer", 30, module="model")
        gradient = run.asks("probe", 20, name="grad[model.weight]", kind="gradient")
        run.frees(gradient, passing)
        run.frees(run.asks("step", 1))
    run.asks("probe", 20, name="grad[model.weight]", kind="gradient")
    source = {(USER, 50): "loss.backward(create_graph=True)"}
    answer = run.fails("probe", 60, tmp_path, source=source)
    assert finding_of(answer, "gradient_cycles") is None
