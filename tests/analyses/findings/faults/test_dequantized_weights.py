"""Wide forms of quantized weights that the graph keeps, beside activations and weights of other layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.analyses.finding import Finding
from vramlens.units import MIB

USER = "/home/user/tune.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "__init__"),),
    "layer": ((USER, 20, "forward"), CALL, (USER, 40, "main")),
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 41, "main")),
}


def told(
    folder: Path, *, wide: float, layers: int = 6, dtype: str = "int8", owner: str = "model.{}"
) -> Finding | None:
    """What is told where each layer has 40 MiB of quantized weight, and made so much of it."""
    run = MadeRun(FRAMES)
    for number in range(6):
        name = f"model.{number}.weight"
        run.asks("weights", 40, name=name, kind="buffer", dtype=dtype)
    for number in range(layers):
        run.asks("layer", wide, module=owner.format(number))
        run.asks("layer", 10, module=owner.format(number))
    return finding_of(run.fails("layer", 80, folder), "dequantized_weights")


@pytest.mark.parametrize("wide", [80, 160, 320])
def test_each_layer_keeps_the_wide_form_of_its_weight(tmp_path: Path, wide: int) -> None:
    finding = told(tmp_path, wide=wide)
    assert finding is not None
    assert finding.bytes == 6 * wide * MIB
    assert "6 layers" in finding.title
    assert "torch.autograd.Function" in (finding.fix or "")


def test_what_is_none(tmp_path: Path) -> None:
    assert told(tmp_path, wide=90) is None  # an activation of another size
    assert told(tmp_path, wide=80, layers=2) is None  # without a graph
    assert told(tmp_path, wide=80, dtype="bfloat16") is None
    assert told(tmp_path, wide=80, owner="model.head") is None
