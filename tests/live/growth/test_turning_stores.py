"""Stores that were full when the watch began: as much goes as comes, and what goes is older."""

from __future__ import annotations

import gc
import random
import sys
from collections import UserDict
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramlens import LeakWatch  # noqa: E402


@pytest.fixture(autouse=True)
def _collected() -> None:
    """What other tests left in circles is older than the watch, and may go during it."""
    gc.collect()


class _Bank:
    def __init__(self) -> None:
        self.features: dict[str, Any] = {}

    def remember(self, step: int, keep: int) -> None:
        self.features[f"{step:05d}"] = torch.zeros(2048)
        expired = f"{step - keep:05d}"
        if expired in self.features:
            del self.features[expired]


class _Window(UserDict[int, Any]):
    """A window whose emptying the source of its user does not show."""

    def __setitem__(self, key: int, value: Any) -> None:
        self.data[key] = value
        evict = self.data.pop
        evict(key - 140, None)


@pytest.mark.parametrize("watched", [40, 60, 130])
def test_a_window_that_is_full_is_no_alarm(watched: int) -> None:
    bank = _Bank()
    for step in range(200):
        bank.remember(step, 140)
    watch = LeakWatch()
    for step in range(200, 200 + watched):
        bank.remember(step, 140)
        watch.step()
    report = watch.report()
    assert not report.found
    (leak,) = report.leaks
    assert leak.verdict == "possible"


def test_it_is_no_alarm_where_no_removal_is_known() -> None:
    window = _Window()
    for step in range(200):
        window[step] = torch.zeros(2048)
    watch = LeakWatch()
    for step in range(200, 260):
        window[step] = torch.zeros(2048)
        watch.step()
    report = watch.report()
    assert not report.found


def test_a_window_that_is_full_when_the_unit_of_steps_changes() -> None:
    bank = _Bank()
    for step in range(200):
        bank.remember(step, 140)
    former = LeakWatch()
    for step in range(200, 210):
        bank.remember(step, 140)
        former.step()
    watch = LeakWatch(former)
    for step in range(210, 270):
        bank.remember(step, 140)
        watch.step()
    assert not watch.report().found


def test_older_memory_of_another_size_says_nothing() -> None:
    bank, older = _Bank(), [torch.zeros(1024) for _ in range(200)]
    watch = LeakWatch()
    for step in range(60):
        bank.remember(step, 1000)
        older.pop()
        watch.step()
    (leak,) = watch.report().found
    assert leak.owner is not None
    assert leak.owner.name == "_Bank.features"


def test_a_store_that_goes_on_growing_beside_what_is_older() -> None:
    kept = [torch.zeros(2048) for _ in range(200)]
    watch = LeakWatch()
    for _ in range(60):
        kept.append(torch.zeros(2048))
        watch.step()
    (leak,) = watch.report().found
    assert leak.verdict == "proven"


def test_what_went_at_once_does_not_make_a_short_watch_one_of_a_full_store() -> None:
    """Gradients of the size of what is kept: all go in the first step, and no more after it."""
    kept: list[Any] = []
    gradients = [torch.zeros(2048) for _ in range(20)]
    watch = LeakWatch()
    for _ in range(20):
        kept.append(torch.zeros(2048))
        gradients.clear()
        watch.step()
    (leak,) = watch.report().found
    assert leak.verdict == "proven"


class _Grid:
    """The best of each cell: any may be replaced, whenever it came."""

    def __init__(self) -> None:
        self.elites: dict[int, Any] = {}

    def offer(self, cell: int) -> None:
        self.elites[cell] = torch.zeros(16 * 1024)


CELLS, OFFERS = 100, 8


@pytest.mark.parametrize(("begins", "verdict"), [(60, "possible"), (0, "possible")])
def test_a_table_whose_entries_are_replaced_is_level(begins: int, verdict: str) -> None:
    """What is left is of each step, the more the later: so it is of what only grows."""
    rng, grid = random.Random(4), _Grid()
    for _ in range(begins * OFFERS):
        grid.offer(rng.randrange(CELLS))
    watch = LeakWatch()
    for _ in range(80):
        for _ in range(OFFERS):
            grid.offer(rng.randrange(CELLS))
        watch.step()
    report = watch.report()
    watch.stop()
    assert not report.found
    assert all(leak.verdict == verdict for leak in report.leaks)


def test_a_leak_beside_memory_that_is_let_go_in_between_is_told() -> None:
    """For a moment the counter falls by what the leak left in a quarter of the run."""
    grid, batches = _Grid(), [torch.zeros(20 * 16 * 1024)]
    watch = LeakWatch()
    for step in range(80):
        grid.offer(step)
        if step == 50:
            batches.clear()
        watch.step()
    (leak,) = watch.report().found
    watch.stop()
    assert (leak.verdict, leak.owner.name) == ("proven", "_Grid.elites")


@pytest.mark.skipif(sys.platform != "linux", reason="shared memory is found by its mapping")
def test_a_leak_in_shared_memory_is_told() -> None:
    """Batches of a loader's workers, which no counter of this process has."""
    grid = _Grid()
    watch = LeakWatch()
    for step in range(60):
        grid.elites[step] = torch.zeros(64 * 1024).share_memory_()
        watch.step()
    (leak,) = watch.report().found
    watch.stop()
    assert leak.owner.name == "_Grid.elites"
