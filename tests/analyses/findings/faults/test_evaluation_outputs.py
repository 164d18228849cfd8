"""Outputs of an evaluation that make the peak, beside rollouts, passes and lists that look alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.analyses.finding import Finding
from vramlens.units import MIB

USER = "/home/user/train.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "load"),),
    "layer": ((USER, 20, "forward"), CALL, (USER, 60, "main")),
    "gathers": (
        (f"{TORCH}/distributed/distributed_c10d.py", 4000, "all_gather"),
        (USER, 40, "evaluate"),
    ),
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 61, "main")),
    "step": ((f"{TORCH}/optim/adam.py", 300, "step"), (USER, 62, "main")),
}
LAYERS = 10


def trains(run: MadeRun, *, after: tuple[int, ...] = ()) -> None:
    """A step of training; what it frees at its end is ``after``."""
    kept = [run.asks("layer", 1, module=f"model.{layer}") for layer in range(LAYERS)]
    run.frees(run.asks("backward", 2), *kept)
    run.frees(run.asks("step", 2), *after)


def evaluates(run: MadeRun, batches: int, size: int, *, gradients: bool = False) -> list[int]:
    """So many batches, each of which leaves a result."""
    outputs = []
    for _ in range(batches):
        for layer in range(LAYERS):
            mark = f"model.{layer}" + ("" if gradients else " [no grad]")
            run.frees(run.asks("layer", 1, module=mark))
        outputs.append(run.asks("gathers", size))
    return outputs


def told(run: MadeRun, folder: Path) -> Finding | None:
    return finding_of(run.ends(folder), "evaluation_outputs")


def begun() -> MadeRun:
    run = MadeRun(FRAMES)
    run.asks("weights", 50, name="model.weight", kind="parameter")
    trains(run)
    return run


def test_outputs_that_go_before_training_goes_on(tmp_path: Path) -> None:
    run = begun()
    run.frees(*evaluates(run, 6, 30))
    trains(run)
    finding = told(run, tmp_path)
    assert finding is not None
    assert finding.verdict == "likely"
    assert finding.bytes == 6 * 30 * MIB
    assert "6 batches of an evaluation" in finding.title
    assert finding.place is not None
    assert finding.place.line == 40


@pytest.mark.parametrize(("batches", "size"), [(3, 60), (6, 2)])
def test_few_or_small_outputs(tmp_path: Path, batches: int, size: int) -> None:
    run = begun()
    run.frees(*evaluates(run, batches, size))
    trains(run)
    assert told(run, tmp_path) is None


def test_a_rollout_that_training_uses(tmp_path: Path) -> None:
    run = begun()
    trains(run, after=tuple(evaluates(run, 6, 30)))
    assert told(run, tmp_path) is None


def test_outputs_of_passes_with_gradients(tmp_path: Path) -> None:
    run = begun()
    run.frees(*evaluates(run, 6, 30, gradients=True))
    trains(run)
    assert told(run, tmp_path) is None


def test_outputs_that_stay(tmp_path: Path) -> None:
    run = begun()
    evaluates(run, 6, 30)
    trains(run)
    assert told(run, tmp_path) is None


def test_a_rollout_that_is_stacked(tmp_path: Path) -> None:
    """The list goes, and its copy is what training uses."""
    run = begun()
    outputs = evaluates(run, 6, 30)
    batch = run.asks("gathers", 6 * 30)
    run.frees(*outputs)
    trains(run, after=(batch,))
    assert told(run, tmp_path) is None
