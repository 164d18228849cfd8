"""States of earlier optimizers and of a base model that is trained with its adapters, beside healthy ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/tune.py"
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "load"),),
    "step": ((f"{TORCH}/optim/adamw.py", 300, "step"), (USER, 60, "main")),
}


@pytest.mark.parametrize(
    ("names", "is_told"),
    [
        (("optimizer", "optimizer_2", "optimizer_3"), True),
        (("optimizer",), False),
    ],
)
def test_states_of_earlier_optimizers(
    tmp_path: Path, names: tuple[str, ...], *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 50, name="model.weight", kind="parameter", use="stepped")
    for optimizer in names:
        for state in ("exp_avg", "exp_avg_sq"):
            name = f"{optimizer}.{state}[model.weight]"
            run.asks("step", 50, name=name, kind="optimizer_state")
    finding = finding_of(run.fails("step", 60, tmp_path), "earlier_optimizers")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == 2 * 2 * 50 * MIB
        assert "2 earlier optimizers" in finding.title


def test_optimizers_of_several_models(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    for optimizer, model in (("opt_g", "generator"), ("opt_d", "critic")):
        run.asks("weights", 50, name=f"{model}.weight", kind="parameter", use="stepped")
        for state in ("exp_avg", "exp_avg_sq"):
            name = f"{optimizer}.{state}[{model}.weight]"
            run.asks("step", 50, name=name, kind="optimizer_state")
    assert finding_of(run.fails("step", 60, tmp_path), "earlier_optimizers") is None


@pytest.mark.parametrize(
    ("adapter", "base", "use", "is_told"),
    [
        ("model.q.lora_A.default.weight", 100, "stepped", True),
        ("model.q.lora_b", 100, "stepped", True),
        ("model.adapter.down.weight", 100, "stepped", True),
        ("model.q.lora_A.default.weight", 100, "frozen", False),
        ("model.q.lora_A.default.weight", 15, "stepped", False),  # a head beside the adapters
        ("model.explora_base.weight", 100, "stepped", False),
    ],
)
def test_a_base_that_is_trained_with_its_adapters(
    tmp_path: Path, adapter: str, base: int, use: str, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 2, name=adapter, kind="parameter", use="stepped")
    run.asks("weights", base, name="model.q.weight", kind="parameter", use=use)
    for state in ("exp_avg", "exp_avg_sq"):
        run.asks("step", base, name=f"optimizer.{state}[model.q.weight]", kind="optimizer_state")
    finding = finding_of(run.fails("step", 60, tmp_path), "trained_base")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == 2 * base * MIB
        assert "model.q.weight is trained" in finding.evidence[0]
