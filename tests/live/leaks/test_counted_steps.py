"""The steps that a live leak's bytes are of: the rate times the steps is what is kept."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

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
