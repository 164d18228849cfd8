"""Graphs that grow for so many steps that only their newest nodes may be looked at."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from vramlens import LeakWatch
from vramlens.capture.process import graph_depths
from vramlens.live.counters import step_counters
from vramlens.live.heap import deep_searches
from vramlens.live.leaks.leak_report import LeakReport

torch = pytest.importorskip("torch")

STEPS = 1500


@pytest.fixture(autouse=True)
def _shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch as from 2.13 on, and searches that see the last 600 steps; a machine with time to read
    the memory of the process.
    """
    monkeypatch.setattr(graph_depths, "_FIRST_THAT_KEEPS", (1, 0))
    monkeypatch.setattr(deep_searches, "_DEEPEST", (600, 600, 600))
    monkeypatch.setattr(step_counters, "_PRIVATE_FREE_SECONDS", 60.0)


class _Meter:
    def __init__(self) -> None:
        self.total = torch.zeros(())

    def add(self, loss: torch.Tensor) -> None:
        self.total = self.total + loss


def _report(*, cut_at: Collection[int] = ()) -> LeakReport:
    """What a watch says of a running loss, whose graph is cut after some steps."""
    meter = _Meter()
    weight = torch.ones(64, 64, requires_grad=True)
    watch = LeakWatch()
    for step in range(STEPS):
        meter.add((weight * torch.rand(64, 64)).sum())
        if step in cut_at:
            meter.total = meter.total.detach()
        watch.step()
    report = watch.report()
    watch.stop()
    return report


@pytest.mark.parametrize("is_allocator_read", [True, False])
def test_a_graph_that_grows_is_a_leak_though_its_oldest_nodes_are_not_looked_at(
    monkeypatch: pytest.MonkeyPatch, *, is_allocator_read: bool
) -> None:
    if is_allocator_read:
        monkeypatch.setattr(step_counters, "_FREE_SECONDS", 60.0)
    else:  # what earlier tests gave back to the allocator would be used again, unseen by the system
        monkeypatch.setattr(step_counters, "private_bytes", step_counters.allocated_bytes)
        monkeypatch.setattr(step_counters, "allocated_bytes", lambda: None)
    report = _report()
    (leak,) = report.found
    assert leak.verdict == "proven"
    assert leak.owner is not None
    assert leak.owner.name == "_Meter.total"
    assert leak.bytes_per_step == pytest.approx(4 * 64 * 64, rel=0.05)
    assert any("older nodes of the same graph were not looked at" in why for why in leak.why)
    assert report.unexplained is None


def test_a_graph_that_is_cut_now_and_then_is_no_leak() -> None:
    """Its oldest nodes are not looked at either, and memory did not grow from the start."""
    assert not _report(cut_at=(400, 800)).found
