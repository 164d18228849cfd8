"""What a custom autograd Function saves, beside Functions that save little and checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/quant.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
APPLY: Frame = (f"{TORCH}/autograd/function.py", 596, "apply")
MODEL: Frame = (USER, 66, "forward")


@pytest.mark.parametrize(
    ("lines", "calls", "applied", "is_told"),
    [
        (5, 4, True, True),
        (3, 2, True, True),
        (2, 4, True, False),  # a result and a mask
        (5, 1, True, False),  # one call, which may still run
        (5, 4, False, False),  # a module's forward
    ],
)
def test_lines_of_a_forward_that_each_keep_as_much(
    tmp_path: Path, lines: int, calls: int, *, applied: bool, is_told: bool
) -> None:
    inside: tuple[Frame, ...] = (APPLY, MODEL) if applied else (CALL, MODEL)
    frames: dict[str, tuple[Frame, ...]] = {
        f"line {n}": ((USER, 15 + n, "forward"), *inside, CALL) for n in range(lines)
    }
    run = MadeRun(frames | {"weights": ((USER, 5, "load"),), "layer": (MODEL, CALL)})
    run.asks("weights", 8, name="model.a.weight", kind="parameter")
    for _ in range(calls):
        for n in range(lines):
            run.asks(f"line {n}", 20)
        run.asks("layer", 4)
    finding = finding_of(run.fails("layer", 60, tmp_path), "saved_by_function")
    assert (finding is not None) == is_told
    if finding is not None:
        assert f"keeps {lines} tensors of one size" in finding.title
        assert finding.bytes == (lines - 1) * calls * 20 * MIB


def test_modules_inside_of_a_checkpoint_are_not_the_functions_lines(tmp_path: Path) -> None:
    """``apply`` calls the checkpoint's own ``forward``, and that the modules'."""
    checkpoint: Frame = (f"{TORCH}/utils/checkpoint.py", 270, "forward")
    frames: dict[str, tuple[Frame, ...]] = {
        f"line {n}": ((USER, 15 + n, "forward"), CALL, checkpoint, APPLY, MODEL) for n in range(5)
    }
    run = MadeRun(frames | {"weights": ((USER, 5, "load"),), "layer": (MODEL, CALL)})
    run.asks("weights", 8, name="model.a.weight", kind="parameter")
    for _ in range(4):
        for n in range(5):
            run.asks(f"line {n}", 20)
    assert finding_of(run.fails("layer", 60, tmp_path), "saved_by_function") is None
