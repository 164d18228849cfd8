"""What a graph keeps beside what its backward pass needs: parametrized weights of a loop, attributes of a
Function's ctx.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/train.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "load"),),
    "law": (
        (USER, 20, "forward"),
        CALL,
        (f"{TORCH}/nn/utils/parametrize.py", 421, "get_parametrized"),
        (USER, 30, "forward"),
    ),
    "turn": ((USER, 31, "forward"), CALL, (USER, 60, "main")),
    "function": ((USER, 40, "forward"), (f"{TORCH}/autograd/function.py", 580, "apply")),
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 61, "main")),
    "step": ((f"{TORCH}/optim/adam.py", 300, "step"), (USER, 62, "main")),
}


@pytest.mark.parametrize(
    ("reads", "other", "is_told"), [(5, 20, True), (3, 20, False), (5, 900, False)]
)
def test_parametrized_weights(tmp_path: Path, reads: int, other: int, *, is_told: bool) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", other, name="model.weight", kind="parameter")
    for _ in range(reads):
        run.asks("law", 16, module="model")
        run.asks("turn", 1, module="model")
    finding = finding_of(run.fails("law", 16, tmp_path), "parametrized_weight")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == 4 * 16 * MIB
        assert "parametrize.cached()" in (finding.fix or "")


def test_layers_that_read_a_weight_each(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 20, name="model.weight", kind="parameter")
    for layer in range(8):
        run.asks("law", 16, module=f"model.layers.{layer}")
    assert finding_of(run.fails("law", 16, tmp_path), "parametrized_weight") is None


def test_parametrized_weights_of_earlier_steps(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 20, name="model.weight", kind="parameter")
    for _ in range(5):  # a weight a step is no loop's
        run.asks("law", 16, module="model")
        run.frees(run.asks("backward", 1))
        run.frees(run.asks("step", 1))
    assert finding_of(run.fails("law", 16, tmp_path), "parametrized_weight") is None


@pytest.mark.parametrize(
    ("name", "steps", "is_told"),
    [
        ("SparsemaxBackward.probs", 3, True),
        ("SparsemaxBackward.probs", 1, False),  # of a generator, after its critic's pass
        ("SparsemaxBackward.probs", 0, False),  # its backward pass is to come
        ("model.probs", 3, False),
    ],
)
def test_attributes_of_ctx(tmp_path: Path, name: str, steps: int, *, is_told: bool) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 20, name="model.weight", kind="parameter")
    for _ in range(steps):
        run.asks("function", 30, name=name, module="model")
        run.frees(run.asks("backward", 1))
        run.frees(run.asks("step", 1))
    run.asks("function", 30, name=name, module="model")
    finding = finding_of(run.fails("function", 60, tmp_path), "kept_on_ctx")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == steps * 30 * MIB
        assert "replace ctx.probs" in (finding.fix or "")
