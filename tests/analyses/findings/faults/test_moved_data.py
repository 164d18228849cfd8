"""Data that a program moves to the GPU as it starts, beside what has to be made there."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, MadeRun, finding_of

USER = "/home/user/data.py"
FRAMES = {
    "load": ((USER, 5, "load"),),
    "other": ((USER, 9, "other"),),
    "layer": (
        (f"{TORCH}/nn/modules/linear.py", 134, "forward"),
        (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl"),
        (USER, 20, "step"),
    ),
}
MOVES = "self.cache.append(volume.to(device))"
MAKES = "self.keys.append(torch.zeros(rows, width, device=device))"


@pytest.mark.parametrize(
    ("text", "failing", "runs", "verdict"),
    [
        (MOVES, "load", False, "likely"),
        (MAKES, "load", False, "possible"),
        (MOVES, "other", False, "possible"),
        (MOVES, "load", True, "possible"),  # it may be filled by what is computed
    ],
)
def test_what_is_moved_before_a_model_runs_is_data(
    tmp_path: Path, text: str, failing: str, runs: bool, verdict: str
) -> None:
    run = MadeRun(FRAMES)
    for number in range(20):
        run.asks("load", 50, name=f"Volumes.cache[{number}]")
    if runs:
        run.asks("layer", 1, module="model.a")
    answer = run.fails(failing, 50, tmp_path, source={(USER, 5): text})
    finding = finding_of(answer, "kept_in_store")
    assert finding is not None
    assert finding.verdict == verdict
    assert "on the CPU" in (finding.fix or "")


def test_batches_that_are_moved_too_far_ahead(tmp_path: Path) -> None:
    """A model has run, but not since the first of them came."""
    run = MadeRun(FRAMES)
    run.asks("layer", 1, module="model.a")
    for number in range(20):
        run.asks("load", 50, name=f"local of generator __iter__()[{number}]")
    finding = finding_of(
        run.fails("load", 50, tmp_path, source={(USER, 5): MOVES}), "kept_in_store"
    )
    assert finding is not None
    assert finding.verdict == "likely"
    assert "in a local of generator __iter__()" in finding.title
    assert "2 to 4 are enough" in (finding.fix or "")


def test_what_a_cycle_keeps_of_its_first_pass(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    for number in range(12):
        for view in ("weak", "strong"):
            run.asks("load", 40, name=f"itertools.cycle[{number}]['{view}']")
        run.frees(run.asks("layer", 1, module="model.a"))
    finding = finding_of(run.fails("layer", 50, tmp_path), "kept_in_store")
    assert finding is not None
    assert finding.verdict == "likely"
    assert finding.bytes == 24 * 40 << 20
    assert "begin the loader anew instead" in (finding.fix or "")


@pytest.mark.parametrize(("size", "count"), [(1, 900), (2, 300)])
def test_entries_that_have_no_name_are_those_of_their_line(
    tmp_path: Path, size: int, count: int
) -> None:
    """A recording names the 500 largest; others of the line's size belong to the same store."""
    run = MadeRun(FRAMES)
    for number in range(300):
        run.asks("load", size, name=f"Pictures.rows[{number}]")
    for _ in range(600):
        run.asks("load", 1)
    finding = finding_of(run.fails("load", 20, tmp_path), "kept_in_store")
    assert finding is not None
    assert finding.title.startswith(f"{count} tensors in Pictures.rows hold")


def test_a_container_that_nobody_is_known_to_hold_has_its_article(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    for number in range(20):
        run.asks("load", 50, name=f"OrderedDict['{number}']")
    finding = finding_of(run.fails("load", 50, tmp_path), "kept_in_store")
    assert finding is not None
    assert "in an OrderedDict hold" in finding.title
