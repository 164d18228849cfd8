"""The steps that a live leak's bytes are of: the rate times the steps is what is kept."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from vramlens.ground.verdict import Verdict  # noqa: E402
from vramlens.live.watch import LeakWatch  # noqa: E402


def test_the_bytes_of_a_growing_graph_are_of_the_steps_it_names() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    watch = LeakWatch()
    running: dict[str, object] = {"loss": 0.0}
    for _ in range(12):
        loss = model(torch.randn(1000, 64)).exp().mean()
        watch.step()  # what is added below belongs to the next step already
        running["loss"] += loss  # type: ignore[operator]
    report = watch.report()
    watch.stop()
    (leak,) = report.found
    assert leak.kind == "graph"
    assert leak.is_rate_times_steps
    assert f"so far in {leak.steps} steps" in str(report)


def test_a_sum_that_keeps_nodes_alone_is_proven_whatever_else_goes() -> None:
    """Its one number is as large as one that was there before, and went: no reason for doubt."""
    model = torch.nn.Linear(8, 1)
    older = [torch.zeros(1) for _ in range(8)]
    watch = LeakWatch()
    total: object = 0.0
    for _ in range(60):
        loss = model(torch.randn(16, 8)).tanh().pow(2).mean()
        loss.backward()
        total += loss  # type: ignore[operator]
        older.clear()
        watch.step()
    report = watch.report()
    watch.stop()
    (leak,) = report.found
    assert leak.verdict == Verdict.PROVEN
    assert "(host memory, no tensors)" in str(report)
    assert leak.fix is not None
    assert "total += loss.detach()" in leak.fix
