"""Parameters that were replaced and stay in an optimizer's groups, beside raw tensors that are trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/field.py"
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "build"),),
    "upsample": ((USER, 35, "upsample"),),
    "forward": ((USER, 20, "forward"),),
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 61, "main")),
    "step": ((f"{TORCH}/optim/adam.py", 300, "step"), (USER, 60, "main")),
}
OLD = "optimizer.params[{}][0]"


def steps(run: MadeRun, *sizes: float) -> None:
    """One step whose backward pass makes gradients of these sizes."""
    run.frees(run.asks("forward", 1))
    run.frees(*(run.asks("backward", size) for size in sizes))
    run.frees(run.asks("step", 1))


def has_state(run: MadeRun, parameter: str, mib: float) -> None:
    for state in ("exp_avg", "exp_avg_sq"):
        run.asks("step", mib, name=f"optimizer.{state}[{parameter}]", kind="optimizer_state")


def upsampled(
    run: MadeRun, stages: int, *, grid: str = "model.grid", gradients: bool = True
) -> None:
    """Each stage replaces the grid by a larger one; the last is the module's."""
    run.asks("weights", 3, name="model.rgb.weight", kind="parameter", use="stepped")
    for stage in range(stages):
        size, is_last = 40 + 10 * stage, stage == stages - 1
        name = grid if is_last else OLD.format(stage)
        run.asks("upsample", size, name=name, kind="parameter", use="stepped")
        steps(run, size, 3)
        has_state(run, name.removeprefix("optimizer."), size)
    if gradients:
        run.asks("backward", 3, name="grad[model.rgb.weight]", kind="gradient")


@pytest.mark.parametrize(("part", "gradients"), [("step", True), ("forward", False)])
def test_grids_that_were_replaced(tmp_path: Path, part: str, *, gradients: bool) -> None:
    run = MadeRun(FRAMES)
    upsampled(run, 4, gradients=gradients)
    answer = run.fails(part, 60, tmp_path)
    finding = finding_of(answer, "left_in_groups")
    assert finding is not None
    assert finding.verdict == "likely"
    assert finding.bytes == 3 * (40 + 50 + 60) * MIB
    assert finding.place is not None
    assert finding.place.line == 35
    assert "optimizer.state.pop(p, None)" in (finding.fix or "")
    assert finding_of(answer, "optimizer_state") is None


@pytest.mark.parametrize(
    ("part", "gradients", "is_told"), [("step", True, True), ("forward", False, False)]
)
def test_adapters_of_one_size_that_are_made_anew(
    tmp_path: Path, part: str, *, gradients: bool, is_told: bool
) -> None:
    """Only gradients tell them from those that are trained."""
    run = MadeRun(FRAMES)
    for stage in range(4):
        name = "model.lora_A" if stage == 3 else OLD.format(stage)
        run.asks("upsample", 40, name=name, kind="parameter", use="stepped")
        steps(run, 40)
        has_state(run, name.removeprefix("optimizer."), 40)
    if gradients:
        run.asks("backward", 40, name="grad[model.lora_A]", kind="gradient")
    finding = finding_of(run.fails(part, 60, tmp_path), "left_in_groups")
    assert (finding is not None) == is_told


def test_momentum_is_a_state_too(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 50, name="optimizer.params['head'][0]", kind="parameter", use="stepped")
    steps(run, 50)
    name = "optimizer.momentum_buffer[params['head'][0]]"
    run.asks("step", 50, name=name, kind="optimizer_state")
    run.asks("weights", 70, name="model.head.weight", kind="parameter", use="stepped")
    steps(run, 70)
    run.asks("backward", 70, name="grad[model.head.weight]", kind="gradient")
    finding = finding_of(run.fails("step", 60, tmp_path), "left_in_groups")
    assert finding is not None
    assert finding.bytes == 100 * MIB


@pytest.mark.parametrize(
    ("raw_first", "raw_in_use", "own_use"),
    [
        (True, True, "stepped"),  # codes of the samples, while the decoder grows
        (False, False, "stepped"),  # poses that join later, and have had no gradient yet
        (True, False, "frozen"),  # copies in float32 of what modules have
        (True, False, "unstepped"),
    ],
)
@pytest.mark.parametrize("gradients", [True, False])
def test_raw_tensors_that_are_trained(
    tmp_path: Path, own_use: str, *, raw_first: bool, raw_in_use: bool, gradients: bool
) -> None:
    run = MadeRun(FRAMES)
    raw = OLD.format(0)
    if raw_first:
        run.asks("weights", 100, name=raw, kind="parameter", use="stepped")
    steps(run, *([100] if raw_first else [1]))
    run.asks("weights", 60, name="model.block.weight", kind="parameter", use=own_use)
    if not raw_first:
        run.asks("weights", 100, name=raw, kind="parameter", use="stepped")
    steps(run, 60, *([100] if raw_in_use else []))
    has_state(run, "params[0][0]", 100)
    if gradients:
        run.asks("backward", 60, name="grad[model.block.weight]", kind="gradient")
        if raw_in_use:
            run.asks("backward", 100, name=f"grad[{raw}]", kind="gradient")
    answer = run.fails("step" if gradients else "forward", 60, tmp_path)
    assert finding_of(answer, "left_in_groups") is None


def test_raw_tensors_that_were_frozen(tmp_path: Path) -> None:
    """They are used all the same."""
    run = MadeRun(FRAMES)
    raw = OLD.format(0)
    run.asks("weights", 100, name=raw, kind="parameter", use="stepped", frozen=True)
    steps(run, 100)
    run.asks("weights", 60, name="model.block.weight", kind="parameter", use="stepped")
    steps(run, 60)
    has_state(run, "params[0][0]", 100)
    run.asks("backward", 60, name="grad[model.block.weight]", kind="gradient")
    assert finding_of(run.fails("step", 60, tmp_path), "left_in_groups") is None


def test_splats_that_no_module_has(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    for stage in range(3):
        name = OLD.format(stage)
        run.asks("weights", 50 + stage, name=name, kind="parameter", use="stepped")
        steps(run, 50 + stage)
        has_state(run, name.removeprefix("optimizer."), 50 + stage)
    assert finding_of(run.fails("step", 60, tmp_path), "left_in_groups") is None


def test_a_backward_pass_that_is_under_way(tmp_path: Path) -> None:
    """The codes' gradients come last."""
    run = MadeRun(FRAMES)
    run.asks("weights", 100, name=OLD.format(0), kind="parameter", use="stepped")
    steps(run, 100)
    run.asks("weights", 60, name="model.block.weight", kind="parameter", use="stepped")
    steps(run, 60, 100)
    has_state(run, "params[0][0]", 100)
    run.asks("forward", 1)
    run.asks("backward", 60, name="grad[model.block.weight]", kind="gradient")
    assert finding_of(run.fails("backward", 60, tmp_path), "left_in_groups") is None


def test_raw_codes_beside_a_module_that_came_later_are_only_possible(tmp_path: Path) -> None:
    """Latent codes that no module ever had, while a refiner alone is trained for some steps."""
    run = MadeRun(FRAMES)
    code = OLD.format(0)
    run.asks("weights", 60, name=code, kind="parameter", use="stepped")
    steps(run, 60)
    has_state(run, code.removeprefix("optimizer."), 60)
    run.asks("upsample", 40, name="model.refiner.weight", kind="parameter", use="stepped")
    steps(run, 40)
    run.asks("backward", 40, name="grad[model.refiner.weight]", kind="gradient")
    finding = finding_of(run.fails("step", 60, tmp_path), "left_in_groups")
    assert finding is None or finding.verdict == "possible"
