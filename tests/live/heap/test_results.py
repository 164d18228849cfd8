"""What PyTorch's functions return as one tuple with names: Python's collector does not track it."""

from __future__ import annotations

import functools
import gc
from typing import Any

import pytest

from vramlens import LeakWatch

torch = pytest.importorskip("torch")


class _Solver:
    def __init__(self) -> None:
        self.best: list[Any] = []

    def keep(self, scores: torch.Tensor) -> None:
        self.best.append(scores.topk(64))

    @functools.cache  # noqa: B019
    def factor(self, step: float) -> Any:
        return torch.linalg.lu_factor(torch.eye(64) * (1.0 + step))


def test_results_are_not_tracked() -> None:
    """Else the rest of these tests would show nothing."""
    assert not gc.is_tracked(torch.rand(8).topk(2))


@pytest.mark.parametrize(
    ("what", "owner"), [("keep", "_Solver.best"), ("factor", "_Solver.factor")]
)
def test_a_list_or_a_cache_of_results_is_the_owner(what: str, owner: str) -> None:
    solver = _Solver()
    watch = LeakWatch()
    for step in range(40):
        if what == "keep":
            solver.keep(torch.rand(64, 256))
        else:
            solver.factor(step / 64)
        watch.step()
    (leak,) = watch.report().found
    watch.stop()
    _Solver.factor.cache_clear()  # else it is there for all later tests
    assert leak.owner is not None
    assert leak.owner.name == owner
