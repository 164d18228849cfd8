"""A forward pass whose graph nobody goes through, before an evaluation and the next training pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/train.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
LINEAR: Frame = (f"{TORCH}/nn/modules/linear.py", 134, "forward")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((f"{TORCH}/nn/modules/module.py", 900, "_apply"),),
    "layer": (LINEAR, CALL, (USER, 20, "fit")),
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 21, "fit")),
}
LAYERS = 4


def a_pass(run: MadeRun, root: str = "model", *, graph: bool = True) -> list[int]:
    """What the layers of a model ask for, one after the other."""
    mark = "" if graph else " [no grad]"
    return [run.asks("layer", 20, module=f"{root}.layers.{n}{mark}") for n in range(LAYERS)]


def trained() -> MadeRun:
    """A program that has made a step."""
    run = MadeRun(FRAMES)
    for root in ("model", "teacher"):
        for n in range(LAYERS):
            run.asks("weights", 4, name=f"{root}.layers.{n}.weight", kind="parameter")
    kept = a_pass(run)
    run.frees(*kept, run.asks("backward", 4))
    return run


@pytest.mark.parametrize(
    ("between", "root", "is_told"),
    [(3, "model", True), (2, "model", True), (1, "model", False), (0, "model", False)],
)
def test_a_pass_before_an_evaluation(
    tmp_path: Path, between: int, root: str, *, is_told: bool
) -> None:
    run = trained()
    a_pass(run)
    for _ in range(between):
        run.frees(*a_pass(run, root, graph=False))
    run.asks("layer", 20, module="model.layers.0")
    finding = finding_of(run.fails("layer", 60, tmp_path), "abandoned_pass")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == LAYERS * 20 * MIB
        assert f"{between} passes after it ran without gradients" in finding.evidence[0]


def test_a_teacher_runs_beside_the_graph_that_its_student_trains_on(tmp_path: Path) -> None:
    run = trained()
    a_pass(run)
    for _ in range(3):
        run.frees(*a_pass(run, "teacher", graph=False))
    run.asks("layer", 20, module="model.layers.0")
    assert finding_of(run.fails("layer", 60, tmp_path), "abandoned_pass") is None


def test_a_program_that_has_not_trained_yet(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 4, name="model.layers.0.weight", kind="parameter")
    a_pass(run)
    for _ in range(3):
        run.frees(*a_pass(run, graph=False))
    run.asks("layer", 20, module="model.layers.0")
    assert finding_of(run.fails("layer", 60, tmp_path), "abandoned_pass") is None


def test_views_that_all_keep_their_graphs(tmp_path: Path) -> None:
    run = trained()
    for _ in range(4):
        a_pass(run)
    run.asks("layer", 20, module="model.layers.0")
    assert finding_of(run.fails("layer", 60, tmp_path), "abandoned_pass") is None


@pytest.mark.parametrize("turns", [1, 3])
def test_a_loss_of_passes_with_and_without_a_graph(tmp_path: Path, turns: int) -> None:
    """Pseudo-labels without gradients between two passes of each step: the backward pass goes through both."""
    run = trained()
    for turn in range(turns + 1):
        kept = a_pass(run)
        for _ in range(2):
            run.frees(*a_pass(run, graph=False))
        if turn == turns:
            run.asks("layer", 20, module="model.layers.0")
            break
        kept += a_pass(run)
        run.frees(*kept, run.asks("backward", 4))
    assert finding_of(run.fails("layer", 60, tmp_path), "abandoned_pass") is None


def test_small_passes_between_that_have_graphs(tmp_path: Path) -> None:
    run = trained()
    a_pass(run)
    for _ in range(3):
        run.asks("layer", 0.1, module="model.layers.0")
        run.frees(*a_pass(run))
    run.asks("layer", 20, module="model.layers.0")
    assert finding_of(run.fails("layer", 60, tmp_path), "abandoned_pass") is None
