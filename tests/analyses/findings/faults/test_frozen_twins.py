"""Frozen weights that are there twice, and models that look alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, MadeRun, finding_of
from vramlens.analyses.finding import Finding

LAYER = (
    (f"{TORCH}/nn/modules/linear.py", 134, "forward"),
    (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl"),
    ("/home/user/train.py", 20, "step"),
)
FRAMES = {"weights": ((f"{TORCH}/nn/modules/module.py", 900, "_apply"),), "layer": LAYER}
SIZES = (40, 30, 50)


def told(
    tmp_path: Path, *models: tuple[str, str], adapters: str = "", mib: int = 20
) -> Finding | None:
    """The finding of a run that fails with such models.

    Args:
        models: the name of each, and what training does with its weights.
        adapters: the one that has trained ones.
    """
    run = MadeRun(FRAMES)
    for name, use in models:
        for number, size in enumerate(SIZES):
            weight = f"{name}.layers.{number}.base.weight"
            run.asks("weights", size, name=weight, kind="parameter", use=use)
    if adapters:
        name = f"{adapters}.layers.0.adapter.weight"
        run.asks("weights", 1, name=name, kind="parameter", use="stepped")
    for _ in range(4):
        run.asks("layer", mib)
    return finding_of(run.fails("layer", 60, tmp_path), "frozen_twins")


@pytest.mark.parametrize("models", [("policy", "reference"), ("dpo.policy", "dpo.reference")])
def test_a_reference_beside_adapters(tmp_path: Path, models: tuple[str, str]) -> None:
    policy, reference = models
    finding = told(tmp_path, (policy, "frozen"), (reference, "frozen"), adapters=policy)
    assert finding is not None
    assert finding.verdict == "likely"
    assert finding.bytes == sum(SIZES) << 20
    assert f"weights of {reference}, which" in finding.title
    assert "disable_adapter()" in (finding.fix or "")


def test_a_copy_that_requires_gradients_which_nobody_uses(tmp_path: Path) -> None:
    models = (("policy", "frozen"), ("reference", "unstepped"))
    assert told(tmp_path, *models, adapters="policy") is not None


def test_two_frozen_models_may_differ(tmp_path: Path) -> None:
    models = (("texture", "frozen"), ("content", "frozen"))
    finding = told(tmp_path, *models, adapters="generator")
    assert finding is not None
    assert finding.verdict == "possible"


@pytest.mark.parametrize(
    ("models", "adapters"),
    [
        ((("policy", "stepped"), ("reference", "frozen")), ""),  # all of the policy is trained
        ((("policy", "frozen"),), "policy"),
        ((("policy", ""), ("reference", "")), ""),  # there was no optimizer yet
    ],
)
def test_what_is_there_once(
    tmp_path: Path, models: tuple[tuple[str, str], ...], adapters: str
) -> None:
    assert told(tmp_path, *models, adapters=adapters) is None


def test_a_small_twin_is_not_worth_a_word(tmp_path: Path) -> None:
    models = (("policy", "frozen"), ("reference", "frozen"))
    assert told(tmp_path, *models, adapters="policy", mib=600) is None
