"""Columns of a batch that are padding in every row, beside batches that are full enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.analyses.explanation import Explanation

USER = "/home/user/classify.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "load"),),
    "layer": ((f"{TORCH}/nn/modules/linear.py", 134, "forward"), CALL, (USER, 20, "step")),
}


def fails(folder: Path, *, weights: float, used: int, columns: int = 1024) -> Explanation:
    """The answer where the tenth layer fails, with a batch of 16 rows and 4 KiB for each entry."""
    run = MadeRun(FRAMES)
    run.asks("weights", weights, name="model.weight", kind="parameter")
    for _ in range(9):
        run.asks("layer", 64, module="model.layer")
    batch = {"rows": 16, "columns": columns, "used_columns": used}
    return run.fails("layer", 64, folder, padded_batch=batch)


def test_padding_is_told_with_what_it_takes(tmp_path: Path) -> None:
    answer = fails(tmp_path, weights=100, used=256)
    finding = finding_of(answer, "padded_columns")
    assert finding is not None
    assert finding.verdict == "likely"
    assert finding.bytes == 10 * 64 * 3 // 4 << 20
    assert finding.title.startswith(
        "the batch has 1,024 columns, and its longest row uses 256: 480.00 MiB"
    )
    assert 'padding="longest"' in (finding.fix or "")
    assert finding_of(answer, "activations") is None


@pytest.mark.parametrize(
    ("weights", "used", "columns", "is_told"),
    [
        (100, 720, 1024, True),  # 190 MiB of 740 in use
        (100, 740, 1024, False),  # rounded up to some multiple
        (1000, 256, 1024, True),
        (1300, 256, 1024, False),
        (100, 256, 1023, False),  # nothing computed is of that batch
    ],
)
def test_a_little_padding_is_usual(
    tmp_path: Path, weights: float, used: int, columns: int, is_told: bool
) -> None:
    answer = fails(tmp_path, weights=weights, used=used, columns=columns)
    assert (finding_of(answer, "padded_columns") is not None) == is_told
