"""Layers that one checkpoint computes again at once, beside a checkpoint for each, or for every second one."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/pretrain.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
LINEAR: Frame = (f"{TORCH}/nn/modules/linear.py", 134, "forward")
CHECKPOINT = f"{TORCH}/utils/checkpoint.py"
BACKWARD: Frame = (f"{TORCH}/_tensor.py", 600, "backward")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "load"),),
    "layer": (LINEAR, CALL, (USER, 20, "encode")),
    "again": (LINEAR, CALL, (CHECKPOINT, 1600, "recompute_fn"), BACKWARD, (USER, 30, "main")),
    "again, reentrant": (LINEAR, CALL, (CHECKPOINT, 300, "backward"), BACKWARD, (USER, 30, "main")),
}


@pytest.mark.parametrize(
    ("part", "layers", "weights", "is_told"),
    [
        ("again", 6, 100, True),
        ("again, reentrant", 6, 100, True),
        ("layer", 6, 100, False),  # a forward pass
        ("again", 2, 100, False),  # a segment of two
        ("again", 6, 2000, False),  # little of what is in use
    ],
)
def test_layers_that_are_computed_again_at_once(
    tmp_path: Path, part: str, layers: int, weights: int, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", weights, name="model.blocks.0.fc1.weight", kind="parameter")
    for layer in range(layers):
        for module in ("qkv", "fc1", "fc2"):
            run.asks(part, 40, module=f"model.blocks.{layer}.{module}")
    finding = finding_of(run.fails(part, 40, tmp_path), "one_checkpoint")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.verdict == "likely"
        assert finding.bytes == (layers - 1) * 3 * 40 * MIB
        assert f"around {layers} layers or more" in finding.title
        assert "model.blocks.5 is the latest" in finding.evidence[0]


@pytest.mark.parametrize(
    ("part", "turns", "is_told"),
    [("again", 6, True), ("again, reentrant", 6, True), ("layer", 6, False), ("again", 3, False)],
)
def test_iterations_that_are_computed_again_at_once(
    tmp_path: Path, part: str, turns: int, *, is_told: bool
) -> None:
    """The same three layers, whose loop one checkpoint is around."""
    run = MadeRun(FRAMES)
    run.asks("weights", 100, name="model.closure.layers.0.weight", kind="parameter")
    for _ in range(turns):
        for layer in range(3):
            run.asks(part, 80, module=f"model.closure.layers.{layer}")
    finding = finding_of(run.fails(part, 80, tmp_path), "one_checkpoint")
    assert (finding is not None) == is_told
    if finding is not None:
        assert f"around {turns} iterations of a loop or more" in finding.title
        assert finding.bytes == (turns - 1) * 3 * 80 * MIB
        assert "inside of the loop" in (finding.fix or "")
