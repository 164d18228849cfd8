"""Numbers of twice the usual width: known by their names, or by what they were computed with."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/segment.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "load"),),
    "layer": ((f"{TORCH}/nn/modules/linear.py", 134, "forward"), CALL, (USER, 20, "step")),
    "loss": ((USER, 50, "forward"), CALL, (USER, 21, "step")),
}


@pytest.mark.parametrize(
    ("dtype", "module", "mib", "is_told"),
    [
        ("float64", "Prior", 256, True),
        ("float32", "Prior", 256, False),  # twice as large for another reason
        ("float64", "model", 256, False),  # another module has it
        ("float64", "Prior", 200, False),  # not twice what goes in
        ("complex128", "Prior", 256, False),
    ],
)
def test_what_a_buffer_widens(
    tmp_path: Path, dtype: str, module: str, mib: int, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 1, name=f"{module}.offset", kind="buffer", dtype=dtype)
    run.asks("layer", 128, name="float32[128, 512, 512] tensor", module="model")
    for _ in range(2):
        run.asks("loss", mib, module="Prior")
    finding = finding_of(run.fails("loss", mib, tmp_path), "double_precision")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == 3 * 128 * MIB  # half of two of them, and of the request
        assert "convert Prior.offset to single precision" in (finding.fix or "")


def test_what_names_tell(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("layer", 128, name="float64[64, 512, 512] tensor", module="model")
    finding = finding_of(run.fails("layer", 128, tmp_path), "double_precision")
    assert finding is not None
    assert finding.bytes == (64 + 64) * MIB  # half of it, and of the request
    assert "as they go to the GPU" in (finding.fix or "")


def test_an_order_of_as_many_bytes_is_not_in_double_precision(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("layer", 128, name="float64[64, 512, 512] tensor", module="model")
    answer = run.fails("layer", 128, tmp_path, expression="x.argsort(-1)")
    finding = finding_of(answer, "double_precision")
    assert finding is not None
    assert finding.bytes == 64 * MIB


@pytest.mark.parametrize(
    ("shape", "in_graph", "constant", "is_told"),
    [
        ("float64[32, 512, 512]", True, "float64[512, 512]", True),
        ("float32[64, 512, 512]", True, "float64[512, 512]", False),  # of the same bytes
        ("float64[32, 512, 512]", False, "float64[512, 512]", False),  # data
    ],
)
def test_what_a_constant_of_the_program_widens(
    tmp_path: Path, shape: str, constant: str, *, in_graph: bool, is_told: bool
) -> None:
    """A solver without modules: of most of its fields nobody knows the type."""
    run = MadeRun(FRAMES)
    run.asks("weights", 2, name="Solver.inverse", shape=constant)
    run.asks("layer", 64, name=f"{shape} tensor", shape=shape, in_graph=in_graph)
    for _ in range(4):
        run.asks("layer", 64)
    finding = finding_of(run.fails("layer", 64, tmp_path), "double_precision")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == (1 + 6 * 32) * MIB
        assert "make Solver.inverse in single precision" in (finding.fix or "")
        assert finding.place is not None
        assert finding.place.line == FRAMES["weights"][0][1]


def test_a_constant_of_other_sizes_widens_nothing(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 1, name="Solver.table", shape="float64[256, 512]")
    shape = "float64[32, 512, 512]"
    run.asks("layer", 64, name=f"{shape} tensor", shape=shape, in_graph=True)
    finding = finding_of(run.fails("layer", 64, tmp_path), "double_precision")
    assert finding is not None
    assert "Solver.table" not in (finding.fix or "")
