"""What grows with the square of the batch, beside what grows with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/moe.py"
LINES = 10
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "load"),),
    "pairs": ((USER, 51, "forward"),),
    **{f"line {n}": ((USER, 60 + n, "forward"),) for n in range(LINES)},
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 90, "fit")),
    "optimizer": (
        (f"{TORCH}/optim/adamw.py", 600, "_single_tensor_adamw"),
        (f"{TORCH}/optim/optimizer.py", 480, "step"),
        (USER, 91, "fit"),
    ),
}


@pytest.mark.parametrize(
    ("times", "pairs", "lines", "mib_of_line", "is_told"),
    [
        (2, 4, LINES, 1, True),
        (3, 9, LINES, 1, True),
        (2, 2, LINES, 1, False),  # with the batch
        (2, 3, LINES, 1, False),
        (1, 4, LINES, 1, False),  # not with the batch
        (2, 4, 4, 1, False),  # hardly anything says that the batch is larger
        (2, 4, LINES, 200, False),  # little of all
    ],
)
def test_the_square_of_the_batch(
    tmp_path: Path, times: int, pairs: int, lines: int, mib_of_line: int, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 8, name="model.a.weight", kind="parameter")
    for _ in range(4):
        kept = [run.asks(f"line {n}", mib_of_line) for n in range(lines)] + [run.asks("pairs", 10)]
        run.frees(*kept, run.asks("backward", 4))
        run.frees(run.asks("optimizer", 2))
    for n in range(lines):
        run.asks(f"line {n}", mib_of_line * times)
    run.asks("pairs", 10 * pairs, name=f"float32[{128 * times}, 4, 20] tensor")
    finding = finding_of(run.fails("pairs", 10 * pairs, tmp_path), "square_growth")
    assert (finding is not None) == is_told
    if finding is not None:
        assert f"{times * times:.2f}x what it was" in finding.title
        assert finding.bytes == int(20 * pairs * MIB * (1 - 1 / times))
