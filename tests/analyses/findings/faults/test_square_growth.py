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
    ("times", "pairs", "lines", "mib_of_line", "shape", "is_told"),
    [
        (2, 4, LINES, 1, "256, 4, 20", True),
        (3, 9, LINES, 1, "384, 4, 20", True),
        (2, 2, LINES, 1, "256, 4, 20", False),  # with the batch
        (2, 3, LINES, 1, "256, 4, 20", False),
        (1, 4, LINES, 1, "256, 4, 20", False),  # not with the batch
        (2, 4, 4, 1, "256, 4, 20", False),  # hardly anything says that the batch is larger
        (2, 4, LINES, 200, "256, 4, 20", False),  # little of all
        (2, 4, LINES, 1, "8, 256, 256", False),  # attention of texts twice as long
    ],
)
def test_the_square_of_the_batch(
    tmp_path: Path,
    times: int,
    pairs: int,
    lines: int,
    mib_of_line: int,
    shape: str,
    *,
    is_told: bool,
) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 8, name="model.a.weight", kind="parameter")
    for _ in range(4):
        kept = [run.asks(f"line {n}", mib_of_line) for n in range(lines)] + [run.asks("pairs", 10)]
        run.frees(*kept, run.asks("backward", 4))
        run.frees(run.asks("optimizer", 2))
    for n in range(lines):
        run.asks(f"line {n}", mib_of_line * times)
    run.asks("pairs", 10 * pairs, name=f"float32[{shape}] tensor")
    finding = finding_of(run.fails("pairs", 10 * pairs, tmp_path), "square_growth")
    assert (finding is not None) == is_told
    if finding is not None:
        assert f"{times * times:.2f}x what it was" in finding.title
        assert finding.bytes == int(20 * pairs * MIB * (1 - 1 / times))


def test_inputs_of_which_both_sizes_have_doubled(tmp_path: Path) -> None:
    """Twice the samples, twice as long: most grows four times, and what is pooled twice."""
    run = MadeRun(FRAMES | {f"pooled {n}": ((USER, 80 + n, "forward"),) for n in range(LINES - 1)})
    run.asks("weights", 8, name="model.a.weight", kind="parameter")
    for times in (1, 1, 1, 1, 2):
        kept = [run.asks(f"line {n}", 4 * times**2) for n in range(LINES)]
        kept += [run.asks(f"pooled {n}", times) for n in range(LINES - 1)]
        kept.append(run.asks("pairs", 100 * times**2))
        if times == 1:
            run.frees(*kept, run.asks("backward", 4))
            run.frees(run.asks("optimizer", 2))
    assert finding_of(run.fails("pairs", 400, tmp_path), "square_growth") is None
