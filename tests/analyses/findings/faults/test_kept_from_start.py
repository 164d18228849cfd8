"""Data that was put on the GPU before the first step, beside what a step or a graph makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, MadeRun, finding_of

USER = "/home/user/distill.py"
FRAMES = {
    "bank": ((USER, 5, "run_teacher"),),
    "layer": (
        (f"{TORCH}/nn/modules/linear.py", 134, "forward"),
        (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl"),
        (USER, 20, "step"),
    ),
}
SHAPE = "float16[40, 8, 256, 32000] tensor"


@pytest.mark.parametrize(
    ("name", "words"),
    [("Trainer.bank", "and stay: Trainer.bank"), (SHAPE, f"the tensor of {SHAPE[:-7]}")],
)
def test_what_an_attribute_or_a_variable_keeps(tmp_path: Path, name: str, words: str) -> None:
    """What only a variable keeps has no name but its shape."""
    run = MadeRun(FRAMES)
    run.asks("bank", 5000, name=name)
    for module in ("model.a", "model.b", "model.a"):
        run.asks("layer", 100, module=module)
    finding = finding_of(run.fails("layer", 100, tmp_path), "kept_from_start")
    assert finding is not None
    assert words in finding.title
    assert "on the CPU" in (finding.fix or "")


def test_a_first_batch_in_a_variable_is_none(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("bank", 5000, name=SHAPE)
    run.asks("layer", 100, module="model.a")
    assert finding_of(run.fails("layer", 100, tmp_path), "kept_from_start") is None


def test_what_the_first_step_makes_is_none(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("layer", 100, module="model.a")
    run.asks("bank", 5000, name=SHAPE)
    assert finding_of(run.fails("layer", 100, tmp_path), "kept_from_start") is None
