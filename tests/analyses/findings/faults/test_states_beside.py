"""States of earlier optimizers and of a base model that is trained with its adapters, beside healthy ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/tune.py"
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "load"),),
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 61, "main")),
    "step": ((f"{TORCH}/optim/adamw.py", 300, "step"), (USER, 60, "main")),
}


def trained_by(
    run: MadeRun, optimizers: tuple[str, ...], *, parameter: str = "model.weight", passes: int = 2
) -> None:
    """Each optimizer steps, and trains for some passes, before the next one is made."""
    for optimizer in optimizers:
        for state in ("exp_avg", "exp_avg_sq"):
            run.asks("step", 50, name=f"{optimizer}.{state}[{parameter}]", kind="optimizer_state")
        for _ in range(passes):
            run.frees(run.asks("backward", 1))
            run.frees(run.asks("step", 1))


ROUNDS = ("optimizer", "optimizer_2", "optimizer_3")


@pytest.mark.parametrize(
    ("optimizers", "parameter", "passes", "is_told"),
    [
        (ROUNDS, "model.weight", 2, True),
        (ROUNDS, "model.weight", 1, False),  # tasks that share a trunk, and step by turns
        (ROUNDS[:2], "model.weight", 2, False),  # an encoder's and a critic's
        (ROUNDS, "params[0][0]", 2, False),  # raw tensors: which ones nobody knows
        (ROUNDS[:1], "model.weight", 2, False),
    ],
)
def test_states_of_earlier_optimizers(
    tmp_path: Path, optimizers: tuple[str, ...], parameter: str, passes: int, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 50, name="model.weight", kind="parameter", use="stepped")
    trained_by(run, optimizers, parameter=parameter, passes=passes)
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


BASE = "model.layers.0.q.weight"


@pytest.mark.parametrize(
    ("adapter", "name", "base", "use", "is_told"),
    [
        ("model.layers.0.q.lora_A.default.weight", BASE, 100, "stepped", True),
        ("model.layers.0.q.lora_b", BASE, 100, "stepped", True),
        ("model.layers.0.adapter.down.weight", BASE, 100, "stepped", True),
        ("model.layers.0.q.lora_A.default.weight", BASE, 100, "frozen", False),
        ("model.layers.0.q.lora_A.default.weight", BASE, 15, "stepped", False),  # a head
        ("model.layers.0.explora_base.weight", BASE, 100, "stepped", False),
        ("model.adapter.layers.0.weight", BASE, 100, "stepped", False),  # joins two models
        ("model.layers.0.q.lora_b", "critic.weight", 100, "stepped", False),
        ("model.layers.0.q.lora_b", "model.modules_to_save.weight", 100, "stepped", False),
        ("model.layers.0.q.lora_b", "model.embed_tokens.weight", 100, "stepped", False),
    ],
)
def test_a_base_that_is_trained_with_its_adapters(
    tmp_path: Path, adapter: str, name: str, base: int, use: str, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 2, name=adapter, kind="parameter", use="stepped")
    run.asks("weights", base, name=name, kind="parameter", use=use)
    for state in ("exp_avg", "exp_avg_sq"):
        run.asks("step", base, name=f"optimizer.{state}[{name}]", kind="optimizer_state")
    finding = finding_of(run.fails("step", 60, tmp_path), "trained_base")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == 2 * base * MIB
        assert f"{BASE} is trained" in finding.evidence[0]


def test_a_few_trained_layers_of_a_frozen_base(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 2, name="model.layers.0.q.lora_b", kind="parameter", use="stepped")
    run.asks("weights", 300, name="model.layers.1.q.weight", kind="parameter", use="frozen")
    run.asks("weights", 100, name=BASE, kind="parameter", use="stepped")
    for state in ("exp_avg", "exp_avg_sq"):
        run.asks("step", 100, name=f"optimizer.{state}[{BASE}]", kind="optimizer_state")
    assert finding_of(run.fails("step", 60, tmp_path), "trained_base") is None
