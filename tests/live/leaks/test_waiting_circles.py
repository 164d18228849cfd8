"""Circles that wait for the collector: what it was seen to free is no leak that is proven."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from vramlens import LeakWatch
from vramlens.live.growth.births import Collections

torch = pytest.importorskip("torch")


class Circle:
    def __init__(self) -> None:
        self.me, self.weights = self, torch.zeros(4096)


@pytest.fixture
def threshold() -> Iterator[None]:
    """The collector runs when the test says so, and is on all the same."""
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(100_000)
    yield
    gc.set_threshold(*before)


def _leaks(steps: int, collected: tuple[int, ...]) -> tuple[Any, ...]:
    watch = LeakWatch()
    for step in range(steps):
        Circle()
        if step in collected:
            gc.collect()
        watch.step()
    return watch.report().leaks


@pytest.mark.usefixtures("threshold")
@pytest.mark.parametrize(
    ("collected", "reason"),
    [((12, 18), "2 full runs so far, the last in step 19"), ((23,), "1 full run so far")],
)
def test_what_the_collector_frees_now_and_then_is_possible(
    collected: tuple[int, ...], reason: str
) -> None:
    (leak,) = _leaks(60, collected)
    assert (leak.kind, leak.verdict) == ("cycle", "possible")
    assert "Python's collector frees it" in leak.reason
    assert reason in leak.reason


@pytest.mark.usefixtures("threshold")
@pytest.mark.parametrize(
    "collected", [(), (4,), (3, 6)], ids=["no run", "one, with an import", "none for long"]
)
def test_what_it_was_not_seen_to_free_is_proven(collected: tuple[int, ...]) -> None:
    (leak,) = _leaks(60, collected)
    assert (leak.kind, leak.verdict) == ("cycle", "proven")


@pytest.mark.usefixtures("threshold")
@pytest.mark.parametrize(("freed", "verdict"), [(60, "possible"), (0, "proven")])
def test_what_goes_while_it_is_young_is_possible(freed: int, verdict: str) -> None:
    """One circle of each step is in use when the collector runs, and waits for a full run."""
    watch = LeakWatch()
    for _ in range(40):
        circles = [Circle() for _ in range(freed)]
        del circles
        in_use = Circle()
        gc.collect(0)
        gc.collect(1)
        watch.step()
        del in_use
    (leak,) = watch.report().leaks
    assert (leak.kind, leak.verdict) == ("cycle", verdict)
    assert ("frees most of it while it is young" in leak.reason) is (verdict == "possible")


def test_pauses() -> None:
    runs = Collections()
    for step in (1, 9, 30, 40):  # the first comes with imports
        runs.note(step)
    assert (runs.count, runs.last, runs.longest_pause) == (3, 40, 21)
