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
    folder: Path,
    *,
    wide: float,
    layers: int = 6,
    dtype: str = "int8",
    owner: str = "model.{}",
    mark: str = "",
    of_norms: float = 0,
    shape: str = "",
) -> Finding | None:
    """What is told where each layer has 40 MiB of quantized weight, and made so much of it.

    Args:
        of_norms: what a layer without weights makes beside each.
    """
    run = MadeRun(FRAMES)
    for number in range(6):
        name = f"model.{number}.weight"
        run.asks("weights", 40, name=name, kind="buffer", dtype=dtype)
    for number in range(layers):
        module = owner.format(number) + mark
        run.asks("layer", wide, module=module, name=f"{shape} tensor" if shape else "", shape=shape)
        run.asks("layer", 10, module=module)
        if of_norms:
            run.frees(run.asks("layer", of_norms, module="norm"))
    return finding_of(run.fails("layer", 80, folder), "dequantized_weights")


@pytest.mark.parametrize("wide", [80, 160, 320])
def test_each_layer_keeps_the_wide_copy_of_its_weight(tmp_path: Path, wide: int) -> None:
    finding = told(tmp_path, wide=wide)
    assert finding is not None
    assert finding.bytes == 5 * wide * MIB  # the layer that runs needs its own
    assert "6 layers" in finding.title
    assert "torch.autograd.Function" in (finding.fix or "")


def test_what_is_none(tmp_path: Path) -> None:
    assert told(tmp_path, wide=90) is None  # an activation of another size
    assert told(tmp_path, wide=80, layers=2) is None  # without a graph
    assert told(tmp_path, wide=80, dtype="bfloat16") is None
    assert told(tmp_path, wide=80, owner="model.head") is None
    assert told(tmp_path, wide=80, mark=" [no grad]") is None


def test_activations_as_large_as_a_weight_would_be(tmp_path: Path) -> None:
    """As many tokens as columns: what layers without weights make is as large, or has a batch."""
    assert told(tmp_path, wide=80, of_norms=80) is None
    assert told(tmp_path, wide=80, shape="bfloat16[1, 4096, 10240]") is None
    assert told(tmp_path, wide=80, shape="bfloat16[4096, 10240]") is not None
