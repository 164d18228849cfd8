"""Experts that all compute every row, beside members of a mixture that all count."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of

USER = "/home/user/mixture.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "load"),),
    "expert": ((USER, 20, "forward"), CALL, (USER, 31, "mix"), CALL),
    "picked": ((USER, 32, "mix"), CALL),
    "elsewhere": ((USER, 50, "sample"),),
    "farther": ((USER, 90, "mix"),),
}
ALL = "every = torch.stack([expert(rows) for expert in self.experts], dim=1)"
PICKS = "picked = every.gather(1, chosen)"


@pytest.mark.parametrize(
    ("calls", "picks", "weights", "is_told"),
    [
        (ALL, {(USER, 32): PICKS}, 100, True),
        (ALL, {(USER, 32): "mixed = (every * weight).sum(1)"}, 100, False),  # all of them count
        (ALL, {(USER, 50): PICKS}, 100, False),  # in another function
        (ALL, {(USER, 90): PICKS}, 100, False),  # in another class
        (
            "out = [expert(x[k]) for k, expert in enumerate(experts)]",
            {(USER, 32): PICKS},
            100,
            False,
        ),
        ("out = [e(x[mask == k]) for e in experts]", {(USER, 32): PICKS}, 100, False),
        ("out = [e(x) for e in experts]", {(USER, 32): "w, k = p.topk(2)"}, 100, True),
        (ALL, {(USER, 32): PICKS}, 1100, True),
        (ALL, {(USER, 32): PICKS}, 1300, False),
    ],
)
def test_experts_whose_results_are_picked(
    tmp_path: Path, calls: str, picks: dict[tuple[str, int], str], weights: int, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", weights, name="model.weight", kind="parameter")
    run.asks("elsewhere", 1)
    run.asks("farther", 1)
    for _ in range(16):
        run.asks("expert", 50, module="model.experts")
    answer = run.fails("picked", 60, tmp_path, source={(USER, 31): calls, **picks})
    finding = finding_of(answer, "idle_experts")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == 16 * 50 << 20
        assert finding.place is not None
        assert finding.place.line == 31
