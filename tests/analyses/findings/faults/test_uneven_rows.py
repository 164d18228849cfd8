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
SIZE = 125
LENGTHS = {"rows": 16, "longest": 2000, "total": 8000}


@pytest.mark.parametrize(
    ("shape", "lengths", "other", "is_told"),
    [
        ("float32[16, 256, 2000]", [LENGTHS], 20, True),
        ("float32[2000, 16, 256]", [LENGTHS], 20, True),  # steps first
        ("float32[16, 256, 1000]", [LENGTHS], 20, False),  # lengths of something else
        ("float32[16, 256, 2000]", [{**LENGTHS, "total": 16000}], 20, False),  # a half is usual
        ("float32[16, 256, 2000]", [LENGTHS], 1900, False),
        ("float32[16, 256, 2000]", [], 20, False),
    ],
)
def test_padding_to_the_longest_row(
    tmp_path: Path, shape: str, lengths: list[dict[str, int]], other: int, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", other, name="net.weight", kind="parameter")
    for layer in range(4):
        run.asks("layer", SIZE, name=f"{shape} tensor", module=f"net.{layer}")
    finding = finding_of(run.fails("layer", SIZE, tmp_path, row_lengths=lengths), "uneven_rows")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == 5 * SIZE * MIB * 3 // 4
        assert "padded to the longest, 2,000, and only 25% of the padded batch" in finding.title


def test_sequences_that_were_packed(tmp_path: Path) -> None:
    """The batch is padded, and what is computed of it is not."""
    run = MadeRun(FRAMES)
    run.asks("weights", 20, name="net.weight", kind="parameter")
    run.asks("layer", SIZE, name="float32[16, 256, 2000] tensor", module="net.0")
    for layer in range(4):
        run.asks("layer", 50, name="float32[8000, 1024] tensor", module=f"net.{layer}")
    answer = run.fails("layer", 50, tmp_path, row_lengths=[LENGTHS])
    assert finding_of(answer, "uneven_rows") is None


def test_labels_as_many_as_the_largest_of_them(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 20, name="net.weight", kind="parameter")
    for layer in range(4):
        run.asks("layer", SIZE, name="float32[64, 512000] tensor", module=f"net.{layer}")
    labels = {"rows": 64, "longest": 64, "total": 1500}
    answer = run.fails("layer", SIZE, tmp_path, row_lengths=[labels])
    assert finding_of(answer, "uneven_rows") is None
