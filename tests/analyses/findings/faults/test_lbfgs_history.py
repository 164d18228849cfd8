"""The history of torch.optim.LBFGS, beside optimizers and histories that are none of it, or too small to
matter.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, MadeRun, finding_of
from vramlens.analyses.explanation import Explanation
from vramlens.analyses.finding import Finding
from vramlens.units import MIB

USER = "/home/user/train.py"
LBFGS = f"{TORCH}/optim/lbfgs.py"
SOLVE = (USER, 91, "solve")


def made(file: str = LBFGS) -> MadeRun:
    return MadeRun(
        {
            "weights": ((USER, 68, "__init__"),),
            "data": ((USER, 5, "load"),),
            "y": ((file, 404, "step"), SOLVE),
            "s": ((file, 405, "step"), SOLVE),
            "direction": ((file, 439, "step"), SOLVE),
            "search": ((file, 45, "_strong_wolfe"), (file, 478, "step"), SOLVE),
            "closure": ((USER, 70, "objective"), (file, 478, "step"), SOLVE),
        }
    )


def keeps_pairs(run: MadeRun, count: int, mib: int = 50) -> list[int]:
    """As many pairs of vectors of that size."""
    return [run.asks(part, mib) for _ in range(count) for part in ("y", "s")]


def failed(run: MadeRun, folder: Path, *, mib: int = 40) -> Finding | None:
    """What is told where the objective's next request fails."""
    return told(run.fails("closure", mib, folder))


def told(answer: Explanation) -> Finding | None:
    return finding_of(answer, "lbfgs_history")


def test_pairs_of_all_iterations(tmp_path: Path) -> None:
    run = made()
    run.asks("weights", 100)
    keeps_pairs(run, 15)
    run.asks("direction", 60)
    answer = run.fails("closure", 40, tmp_path)
    finding = told(answer)
    assert finding is not None
    assert finding.verdict == "likely"
    # Of 1,660 MiB 200 are not pairs, with the request: 14 of 100 MiB fit, 13 with a new one.
    assert "history_size=6 " in (finding.fix or "")
    assert "13 pairs fit beside the 200.00 MiB" in (finding.fix or "")
    assert finding.bytes == 9 * 100 * MIB
    assert "15 pairs" in finding.title
    assert "none was dropped" in " ".join(finding.evidence)
    assert finding.place is not None
    assert finding.place.line == 91
    assert "optimizer_state" not in {other.id for other in answer.findings}


def test_a_full_history_grows_no_more(tmp_path: Path) -> None:
    run = made()
    first = keeps_pairs(run, 1)
    keeps_pairs(run, 15)
    run.frees(*first)
    finding = failed(run, tmp_path)
    assert finding is not None
    assert "none was dropped" not in " ".join(finding.evidence)


def test_what_the_objective_took_before_is_to_fit_again(tmp_path: Path) -> None:
    run = made()
    first = keeps_pairs(run, 5)
    run.frees(run.asks("closure", 400))
    run.frees(*first)
    keeps_pairs(run, 12)
    finding = failed(run, tmp_path)
    assert finding is not None
    assert "7 pairs fit beside the 400.00 MiB" in (finding.fix or "")
    assert "history_size=3 " in (finding.fix or "")


def test_what_there_was_before_the_first_pair_is_gone(tmp_path: Path) -> None:
    run = made()
    run.frees(run.asks("data", 900))
    keeps_pairs(run, 15)
    finding = failed(run, tmp_path)
    assert finding is not None
    assert "beside the 40.00 MiB" in (finding.fix or "")


def test_more_pairs_than_are_of_use(tmp_path: Path) -> None:
    run = made()
    keeps_pairs(run, 60)
    finding = failed(run, tmp_path)
    assert finding is not None
    assert "history_size=20 " in (finding.fix or "")


@pytest.mark.parametrize(("other", "is_told"), [(300, True), (320, False)])
def test_three_pairs_are_the_fewest(tmp_path: Path, other: int, is_told: bool) -> None:
    """Of 710 MiB three of 100 fit beside 300, and the one that is made; beside 320 two."""
    run = made()
    keeps_pairs(run, 7)
    run.frees(run.asks("closure", other))
    run.asks("data", 10)
    finding = failed(run, tmp_path, mib=10)
    assert (finding is not None) == is_told
    assert finding is None or "history_size=3 " in (finding.fix or "")


@pytest.mark.parametrize(("other", "is_told"), [(2900, True), (3100, False)])
def test_pairs_that_are_little_of_what_is_in_use(tmp_path: Path, other: int, is_told: bool) -> None:
    run = made()
    run.asks("data", other)
    keeps_pairs(run, 10)
    assert (failed(run, tmp_path) is not None) == is_told


def test_fewer_pairs_than_would_be_advised(tmp_path: Path) -> None:
    run = made()
    keeps_pairs(run, 3)
    assert failed(run, tmp_path) is None


def test_vectors_of_one_line_are_no_pairs(tmp_path: Path) -> None:
    run = made()
    for _ in range(30):
        run.asks("y", 50)
    assert failed(run, tmp_path) is None


def test_what_lbfgs_calls_keeps_for_itself(tmp_path: Path) -> None:
    run = made()
    for _ in range(15):
        run.asks("closure", 50)
        run.asks("search", 50)
    assert failed(run, tmp_path) is None


def test_another_optimizers_state(tmp_path: Path) -> None:
    run = made(f"{TORCH}/optim/adam.py")
    keeps_pairs(run, 15)
    assert failed(run, tmp_path) is None
