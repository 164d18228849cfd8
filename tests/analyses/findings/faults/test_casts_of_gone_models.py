"""Casts that autocast keeps of models that are gone, beside those of models that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.analyses.finding import Finding
from vramlens.units import MIB

USER = "/home/user/sweep.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
LINEAR: Frame = (f"{TORCH}/nn/modules/linear.py", 134, "forward")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "build": ((USER, 30, "build"),),
    "forward": (LINEAR, CALL, (USER, 39, "forward"), CALL, (USER, 79, "evaluate")),
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 90, "main")),
    "step": ((f"{TORCH}/optim/optimizer.py", 500, "step"), (USER, 91, "main")),
}
SIZES = (32, 48, 64, 64)
"""Of a model's weights, in MiB."""
NO_GRAD = " [no grad]"


def built(run: MadeRun, name: str) -> None:
    """A model whose parameters have such names, or that is gone and whose weights nobody in Python holds."""
    for number, size in enumerate(SIZES):
        if name:
            entry = f"{name}.{number}.weight"
            run.asks("build", size, name=entry, kind="parameter", dtype="float32")
        else:
            shape = f"float32[{size * 256}, 1024]"
            run.asks("build", size, name=f"{shape} tensor", shape=shape)


def runs(run: MadeRun, *, mark: str = NO_GRAD, graph_mib: float = 0) -> None:
    """A pass: the cast of each weight stays, and what a graph keeps."""
    for number, size in enumerate(SIZES):
        module = f"model.{number}{mark}"
        run.asks("forward", size / 2, module=module)
        if graph_mib:
            run.asks("forward", graph_mib, module=module)
        run.frees(run.asks("forward", 5, module=module))


def failed(
    run: MadeRun, folder: Path, part: str = "forward", *, autocast: bool = True
) -> Finding | None:
    return finding_of(run.fails(part, 60, folder, autocast=autocast), "autocast_cache")


@pytest.mark.parametrize("mark", [NO_GRAD, ""])
@pytest.mark.parametrize("part", ["build", "forward"])
def test_weights_and_casts_of_earlier_models(tmp_path: Path, part: str, mark: str) -> None:
    run = MadeRun(FRAMES)
    for _ in range(3):
        built(run, "")
        runs(run, mark=mark)
    built(run, "model")
    if part == "forward":
        runs(run, mark=mark)
    finding = failed(run, tmp_path, part)
    assert finding is not None
    assert finding.verdict == "likely"
    assert finding.bytes == 3 * (sum(SIZES) + sum(SIZES) // 2) * MIB
    assert "inside the loop" in (finding.fix or "")
    assert "torch.clear_autocast_cache()" in (finding.fix or "")


def trains(run: MadeRun) -> None:
    """A pass of a model that will be gone, and its backward pass: weights, casts and gradients stay."""
    built(run, "")
    runs(run, mark="")
    for number, size in enumerate(SIZES):
        shape = f"float32[{size * 256}, 1024]"
        name = f"grad[{shape} tensor]" if number else ""
        run.asks(
            "backward", size, name=name, kind="gradient", shape=shape, module=f"model.{number}"
        )
    run.asks("step", 20, name="optimizer.exp_avg[model.0.weight]", kind="optimizer state")


def test_gradients_of_models_that_were_trained(tmp_path: Path) -> None:
    """A gradient without a name is one, too: no graph keeps what a backward pass made."""
    run = MadeRun(FRAMES)
    for _ in range(3):
        trains(run)
    built(run, "model")
    finding = failed(run, tmp_path)
    assert finding is not None
    assert finding.bytes == 3 * (2 * sum(SIZES) + sum(SIZES) // 2) * MIB
    assert "around each forward pass" in (finding.fix or "")


def test_before_the_next_model_has_any_weight(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    for _ in range(2):
        built(run, "")
        runs(run)
    assert failed(run, tmp_path, "build") is not None


def test_casts_alone_where_the_weights_are_gone(tmp_path: Path) -> None:
    """Where the cache lets go of them, or they were moved to the CPU."""
    run = MadeRun(FRAMES)
    for _ in range(3):
        runs(run)
    built(run, "model")
    runs(run)
    finding = failed(run, tmp_path)
    assert finding is not None
    assert finding.bytes == 3 * sum(SIZES) // 2 * MIB
    assert finding.title.endswith(
        "casts of weights of earlier models, which autocast's cache keeps"
    )


def test_training_one_model_keeps_one_cast_of_each_weight(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    built(run, "model")
    runs(run, mark="")
    assert failed(run, tmp_path) is None


def test_an_ensemble_whose_models_are_all_there(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    for number in range(4):
        built(run, f"models_{number}")
        runs(run)
    assert failed(run, tmp_path) is None


def test_a_copy_that_is_made_after_some_passes(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    built(run, "model")
    runs(run, mark="")
    built(run, "average")
    assert failed(run, tmp_path, "build") is None


def test_graphs_of_earlier_models(tmp_path: Path) -> None:
    """A list of losses keeps activations, too."""
    run = MadeRun(FRAMES)
    for _ in range(3):
        built(run, "")
        runs(run, mark="", graph_mib=20)
    built(run, "model")
    assert failed(run, tmp_path) is None


def test_a_program_that_was_never_under_autocast(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    for _ in range(3):
        built(run, "")
        runs(run)
    built(run, "model")
    assert failed(run, tmp_path, autocast=False) is None


def test_casts_that_the_program_keeps(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    for number in range(3):
        for place, size in enumerate(SIZES):
            name = f"Sweep.halves[{number}]['{place}.weight']"
            run.asks("forward", size / 2, name=name, module="model.0 [no grad]")
    built(run, "model")
    assert failed(run, tmp_path) is None
