"""What is trained although it was to be frozen, or whole although an adapter would do."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/tune.py"
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 20, "build"),),
    "layer": ((f"{TORCH}/nn/modules/linear.py", 134, "forward"), (USER, 30, "forward")),
    "optimizer": ((f"{TORCH}/optim/adamw.py", 200, "_init_group"), (USER, 40, "train")),
}
COPY = "model.lm_head.modules_to_save.default.weight"


@pytest.mark.parametrize(("unfrozen", "is_told"), [("model.encoder", True), ("", False)])
def test_an_attribute_of_the_module_freezes_nothing(
    tmp_path: Path, unfrozen: str, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    for layer in range(4):
        name = f"model.encoder.{layer}.weight"
        run.asks("weights", 20, name=name, kind="parameter", use="stepped", unfrozen=unfrozen)
    run.asks("weights", 2, name="model.head.weight", kind="parameter", use="stepped")
    for layer in range(4):
        run.asks("layer", 100, module=f"model.encoder.{layer}")
    answer = run.fails("layer", 100, tmp_path)
    finding = finding_of(answer, "frozen_in_name")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.title.startswith("model.encoder.requires_grad = False freezes nothing")
        assert "4 parameters" in finding.title
        assert "model.encoder.requires_grad_(False)" in (finding.fix or "")


def test_an_attribute_of_the_whole_model_is_its_own(tmp_path: Path) -> None:
    """A class may have one for a purpose of its own: nobody freezes all that there is."""
    run = MadeRun(FRAMES)
    for layer in range(4):
        name = f"model.{layer}.weight"
        run.asks("weights", 20, name=name, kind="parameter", use="stepped", unfrozen="model")
        run.asks("layer", 100, module=f"model.{layer}")
    assert finding_of(run.fails("layer", 100, tmp_path), "frozen_in_name") is None


@pytest.mark.parametrize(
    ("other", "use", "root"),
    [
        ("judge.weight", "frozen", "model"),  # a network that computes a loss
        ("critic.weight", "stepped", "model"),
        ("judge.weight", "", "model"),  # the program has no optimizer
        ("task.judge.weight", "frozen", "task.model"),
    ],
)
def test_an_attribute_of_a_whole_model_beside_another(
    tmp_path: Path, other: str, use: str, root: str
) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 50, name=other, kind="parameter", use=use)
    for layer in range(4):
        name, own_use = f"{root}.{layer}.weight", use and "stepped"
        run.asks("weights", 20, name=name, kind="parameter", use=own_use, unfrozen=root)
        run.asks("layer", 100, module=f"{root}.{layer}")
    assert finding_of(run.fails("layer", 100, tmp_path), "frozen_in_name") is None


def test_a_whole_model_that_no_optimizer_has_was_to_be_frozen(tmp_path: Path) -> None:
    """``teacher.requires_grad = False``, beside its student."""
    run = MadeRun(FRAMES)
    run.asks("weights", 50, name="student.weight", kind="parameter", use="stepped")
    for layer in range(4):
        name = f"teacher.{layer}.weight"
        run.asks("weights", 20, name=name, kind="parameter", use="unstepped", unfrozen="teacher")
        run.asks("layer", 100, module=f"teacher.{layer}")
    finding = finding_of(run.fails("layer", 100, tmp_path), "frozen_in_name")
    assert finding is not None
    assert finding.bytes == 400 * MIB
    assert finding.title.startswith("teacher.requires_grad = False freezes nothing")


def test_several_modules_that_were_to_be_frozen_are_one_finding(tmp_path: Path) -> None:
    """Each is too small by itself; a module whose name begins alike is none of them."""
    run = MadeRun(FRAMES)
    for part in ("audio", "text", "video"):
        name, module = f"model.{part}.weight", f"model.{part}"
        run.asks("weights", 2, name=name, kind="parameter", use="stepped", unfrozen=module)
        run.asks("layer", 40, module=module)
    run.asks("weights", 500, name="model.text_head.weight", kind="parameter", use="stepped")
    run.asks("layer", 40, module="model.text_head")
    finding = finding_of(run.fails("layer", 100, tmp_path), "frozen_in_name")
    assert finding is not None
    assert finding.bytes == 3 * 40 * MIB
    assert finding.title.startswith("model.audio.requires_grad = False (and of 2 other modules)")
    assert "3 parameters" in finding.title
    assert "model.audio.requires_grad_(False) (and of 2 other modules)" in (finding.fix or "")


@pytest.mark.parametrize(("size", "is_told"), [(500, True), (20, False)])
def test_layers_that_are_trained_whole_beside_adapters(
    tmp_path: Path, size: int, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 600, name="model.layers.0.weight", kind="parameter", use="frozen")
    original = "model.lm_head.original_module.weight"
    run.asks("weights", size, name=original, kind="parameter", use="frozen")
    run.asks("weights", size, name=COPY, kind="parameter", use="stepped")
    run.asks("weights", 2, name="model.layers.0.lora_A.weight", kind="parameter", use="stepped")
    run.asks("optimizer", size, name=f"optimizer.exp_avg[{COPY}]", kind="optimizer_state")
    answer = run.fails("optimizer", size, tmp_path)
    finding = finding_of(answer, "saved_modules")
    assert (finding is not None) == is_told
    assert finding_of(answer, "frozen_twins") is None
    if finding is not None:
        assert "whole copies of lm_head" in finding.title
        assert "leave lm_head out of modules_to_save" in (finding.fix or "")


@pytest.mark.parametrize(
    ("uses", "above", "text", "is_told"),
    [
        ("stepped", "if name.startswith(frozen):", "p.requires_grad = False", True),
        ("stepped", "if 'encoder' in name:", "p.requires_grad_(False)", True),
        ("stepped", "n += 1", "p.requires_grad = False", False),
        ("stepped", "if name.startswith(frozen):", "model.requires_grad_(False).cuda()", False),
        ("frozen", "if name.startswith(frozen):", "p.requires_grad = False", False),
    ],
)
def test_a_loop_that_freezes_no_parameter(
    tmp_path: Path, uses: str, above: str, text: str, *, is_told: bool
) -> None:
    """The names begin otherwise than its test asks for."""
    run = MadeRun(FRAMES)
    for layer in range(6):
        use = uses if layer == 0 else "stepped"
        name = f"model.bert.layer.{layer}.weight"
        run.asks("weights", 20, name=name, kind="parameter", use=use)
        run.asks("layer", 100, module=f"model.bert.layer.{layer}")
    source = {(USER, 61): above, (USER, 62): text}
    finding = finding_of(run.fails("layer", 100, tmp_path, source=source), "unmatched_freeze")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.title.startswith(f"{text} freezes nothing: all 6 parameters are trained")
        assert str(finding.place) == f"{USER}:62"
        assert f"make `{above.rstrip(':')}` fit" in (finding.fix or "")
        assert "model.bert.layer.0.weight" in (finding.fix or "")
