"""Batches of which one row is far longer than the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/speech.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "load"),),
    "layer": ((USER, 20, "forward"), CALL, (USER, 30, "learn")),
}
LENGTHS = {"rows": 16, "longest": 2000, "total": 8000}


@pytest.mark.parametrize(
    ("shape", "lengths", "other", "is_told"),
    [
        ("float32[16, 256, 2000]", [LENGTHS], 20, True),
        ("float32[2000, 16, 256]", [LENGTHS], 20, True),  # steps first
        ("float32[16, 256, 1000]", [LENGTHS], 20, False),  # lengths of something else
        ("float32[16, 256, 2000]", [{**LENGTHS, "total": 16000}], 20, False),  # a half is usual
        ("float32[16, 256, 2000]", [LENGTHS], 900, False),
        ("float32[16, 256, 2000]", [], 20, False),
    ],
)
def test_padding_to_the_longest_row(
    tmp_path: Path, shape: str, lengths: list[dict[str, int]], other: int, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", other, name="net.weight", kind="parameter")
    for layer in range(4):
        run.asks("layer", 30, name=f"{shape} tensor", module=f"net.{layer}")
    finding = finding_of(run.fails("layer", 30, tmp_path, row_lengths=lengths), "uneven_rows")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == 5 * 30 * MIB * 3 // 4
        assert "padded to the longest, 2,000, and use 25% of it" in finding.title
