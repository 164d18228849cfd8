"""Weights in float32 of a model that only answers, beside weights that are trained or narrower."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of

USER = "/home/user/serve.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "load"),),
    "layer": ((f"{TORCH}/nn/modules/linear.py", 134, "forward"), CALL, (USER, 20, "answer")),
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 31, "step")),
}


@pytest.mark.parametrize(
    ("dtype", "passes", "trains", "others", "verdict"),
    [
        ("float32", 3, False, 100, "likely"),
        ("float32", 0, False, 100, "possible"),  # while it is loaded
        ("float32", 3, True, 100, None),
        ("bfloat16", 3, False, 100, None),
        ("", 3, False, 100, None),  # older recordings do not say
        ("float32", 3, False, 950, "likely"),
        ("float32", 3, False, 1010, None),
    ],
)
def test_weights_that_nothing_trains(
    tmp_path: Path, dtype: str, passes: int, trains: bool, others: int, verdict: str | None
) -> None:
    run = MadeRun(FRAMES)
    for number in range(10):
        name = f"model.layers.{number}.weight"
        run.asks("weights", 100, name=name, kind="parameter", dtype=dtype)
    run.asks("weights", others)
    for _ in range(passes):
        mark = "" if trains else " [no grad]"
        paths = [f"model.layers.{layer}{mark}" for layer in range(10)]
        results = [run.asks("layer", 10, module=path) for path in paths]
        if trains:
            run.frees(run.asks("backward", 5))
        run.frees(*results)
    finding = finding_of(run.fails("layer", 60, tmp_path), "wide_weights")
    assert (None if finding is None else finding.verdict) == verdict
    if finding is not None:
        assert finding.bytes == 500 << 20
        assert finding.title.startswith("1000.00 MiB (")
        assert "dtype=torch.bfloat16" in (finding.fix or "")


@pytest.mark.parametrize(
    ("use", "part", "instead"),
    [
        ("frozen", "weights", "dtype=torch.bfloat16"),
        ("frozen", "cast", "leave prepare_model_for_kbit_training out"),
        ("stepped", "weights", None),
    ],
)
def test_frozen_weights_beside_adapters(
    tmp_path: Path, use: str, part: str, instead: str | None
) -> None:
    """Also while they are trained: what the optimizer has is small."""
    peft = "/env/site-packages/peft/utils/other.py"
    cast = ((peft, 150, "prepare_model_for_kbit_training"), (USER, 6, "adapt"))
    run = MadeRun({**FRAMES, "cast": cast})
    for number in range(10):
        run.asks(
            part, 100, name=f"model.{number}.weight", kind="parameter", dtype="float32", use=use
        )
    run.asks("weights", 5, name="model.a", kind="parameter", dtype="float32", use="stepped")
    for layer in range(10):
        run.asks("layer", 10, module=f"model.{layer}")
    run.frees(run.asks("backward", 5))
    finding = finding_of(run.fails("layer", 60, tmp_path), "wide_weights")
    assert (finding is None) == (instead is None)
    if finding is not None and instead is not None:
        assert finding.verdict == "likely"
        assert instead in (finding.fix or "")
