"""Whole weights beside divided ones: an average, and models that are used as they are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.analyses.finding import Finding
from vramlens.units import MIB

USER = "/home/user/train.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "shards": ((USER, 5, "shard"),),
    "copy": ((f"{TORCH}/nn/parameter.py", 70, "__deepcopy__"), (USER, 7, "main")),
    "layer": ((USER, 20, "forward"), CALL, (USER, 60, "main")),
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 61, "main")),
    "step": ((f"{TORCH}/optim/adam.py", 300, "step"), (USER, 62, "main")),
}
LAYERS, STEPS, SIZE = 8, 6, 20


def told(
    folder: Path,
    *,
    copy: str = "ViT",
    use: str = "frozen",
    dtype: str = "float32",
    copy_parts: int = 0,
    parts: int = 2,
    mib: float = 2 * SIZE,
    layers: int = LAYERS,
    runs_in: Iterable[int] = (3,),
) -> Finding | None:
    """The finding of a run of six steps in which a model is divided.

    Args:
        copy: the module beside it.
        use, dtype, copy_parts: of its parameters.
        parts: of how many ranks each has a part of the model's parameters.
        mib: the size of each of the copy's.
        layers: of the copy.
        runs_in: the steps in which it runs.
    """
    run = MadeRun(FRAMES)

    def weight(part: str, model: str, layer: int, size: float, **name: object) -> None:
        path = f"{model}.blocks.{layer}.weight"
        run.asks(part, size, name=path, kind="parameter", **name)  # type: ignore[arg-type]

    for layer in range(LAYERS):
        weight("shards", "model", layer, SIZE, use="stepped", dtype="float32", parts=parts)
    for layer in range(layers):
        weight("copy", copy, layer, mib, use=use, dtype=dtype, parts=copy_parts)
    for step in range(STEPS):
        kept = [run.asks("layer", 1, module=f"model.blocks.{layer}") for layer in range(LAYERS)]
        run.frees(run.asks("backward", 2), *kept)
        run.frees(run.asks("step", 2))
        if step in runs_in:
            for layer in range(layers):
                run.frees(run.asks("layer", 1, module=f"{copy}.blocks.{layer} [no grad]"))
    return finding_of(run.ends(folder), "whole_copy")


@pytest.mark.parametrize("copy", ["ViT", "ema.module", "trainer.average"])
@pytest.mark.parametrize("use", ["frozen", "unstepped"])
def test_an_average_that_was_copied_before_the_model_was_divided(
    tmp_path: Path, copy: str, use: str
) -> None:
    finding = told(tmp_path, copy=copy, use=use)
    assert finding is not None
    assert finding.verdict == "likely"
    assert finding.bytes == LAYERS * SIZE * MIB
    assert "320.00 MiB" in finding.title
    assert "they ran in 1 of 6 steps" in finding.evidence[0]
    assert finding.place is not None
    assert finding.place.line == 7


def test_of_four_ranks_each_saves_three_quarters(tmp_path: Path) -> None:
    finding = told(tmp_path, parts=4, mib=4 * SIZE)
    assert finding is not None
    assert finding.bytes == 3 * LAYERS * SIZE * MIB


def test_what_never_runs(tmp_path: Path) -> None:
    assert told(tmp_path, runs_in=()) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"runs_in": range(STEPS)},  # a reference: whole, it needs no gathers in each step
        {"runs_in": (1, 3, 5)},
        {"use": "stepped"},
        {"use": ""},
        {"copy_parts": 2},
        {"mib": SIZE},  # its own part
        {"dtype": "bfloat16"},
        {"parts": 0},  # nothing is divided
        {"layers": 5},
    ],
    ids=str,
)
def test_what_is_no_such_copy(tmp_path: Path, changes: dict[str, object]) -> None:
    assert told(tmp_path, **changes) is None  # type: ignore[arg-type]
