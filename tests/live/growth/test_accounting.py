"""Growth with no owner found is never called "No leak"."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from vramlens import LeakWatch, no_leaks
from vramlens.live.counters.host_allocator import allocated_bytes
from vramlens.live.counters.step_counters import CounterSeries
from vramlens.live.growth import accounting as account
from vramlens.live.growth.accounting import HostHeap, gone_growth
from vramlens.live.growth.looks import Looks
from vramlens.live.growth.piles import Item
from vramlens.live.heap.tensors import Storage
from vramlens.live.leak_scope import LeakError
from vramlens.units import MIB

torch = pytest.importorskip("torch")


def _host(values: list[int], now: int | None = None) -> HostHeap:
    series = CounterSeries()
    for step, value in enumerate(values, 1):
        series.add(step, value)
    return HostHeap(series, now)


def _items(sizes: dict[int, int]) -> list[Item]:
    return [
        Item(step, size, step, Storage("cpu", 4096 * step, size)) for step, size in sizes.items()
    ]


def test_growth_that_no_storage_explains() -> None:
    growth = account._beside_search([], [], _host([MIB * step for step in range(60)]))
    assert growth is not None
    assert growth.bytes_per_step == pytest.approx(MIB, rel=0.1)
    assert not growth.is_reached


def test_growth_of_pytorchs_own_history() -> None:
    grown = _host([MIB * step for step in range(60)])
    recorded = HostHeap(grown.series, history_events=60 * 2000)  # 2,000 events a step
    assert account._beside_search([], [], recorded) is None
    larger = _host([10 * MIB * step for step in range(60)])
    recorded = HostHeap(larger.series, history_events=60 * 2000)
    assert account._beside_search([], [], recorded) is not None


def test_growth_that_is_gone_by_now() -> None:
    values = [MIB * step for step in range(60)]
    assert account._beside_search([], [], _host(values, now=MIB)) is None
    assert account._beside_search([], [], _host(values, now=60 * MIB)) is not None


@pytest.mark.parametrize(
    ("steps", "is_gone", "is_late"),
    [
        (61, True, True),
        (70, True, True),
        (80, True, False),
        (115, True, False),
        (125, False, False),
    ],
)
def test_how_long_growth_that_is_gone_was_seen(steps: int, is_gone: bool, is_late: bool) -> None:
    """The last reading is of step 60."""
    search: Any = SimpleNamespace(storages={}, storage_at={}, complete=True)
    values = [MIB * step for step in range(60)]
    gone = account.gone_by_now(search, [], _host(values, now=MIB), steps)
    assert (gone is not None) == is_gone
    assert gone is None or (gone.step, account.grew_lately(gone, steps)) == (60, is_late)


def _filled(filled: int, steps: int) -> list[int]:
    """As much at each step until one, and less than a tenth of that afterwards."""
    return [10 * MIB * min(step, filled) + MIB // 2 * step for step in range(steps)]


@pytest.mark.parametrize(
    ("values", "first", "last", "rate"),
    [
        (_filled(60, 100), 54, 61, 10.5),  # state that an optimizer makes at first use
        (_filled(99, 100), 100, 100, 10.5),
        ([10 * MIB * (step // 20) for step in range(100)], 100, 100, 0.5),  # by epochs
    ],
)
def test_until_when_growth_that_is_gone_went_on(
    values: list[int], first: int, last: int, rate: float
) -> None:
    """What stopped long before the last reading did not grow lately, and its steps are those in
    which it grew.
    """
    search: Any = SimpleNamespace(storages={}, storage_at={}, complete=True)
    gone = account.gone_by_now(search, [], _host(values, now=MIB), 101)
    assert gone is not None
    assert first <= gone.step <= last
    assert account.grew_lately(gone, 101) == (last == 100)
    assert gone.bytes_per_step == pytest.approx(rate * MIB, rel=0.15)


def test_growth_that_storages_explain() -> None:
    items = _items(dict.fromkeys(range(1, 61), MIB))
    storages = [item.storage for item in items if item.storage is not None]
    assert (
        account._beside_search(storages, items, _host([MIB * step for step in range(60)])) is None
    )


@pytest.mark.parametrize(("scalars", "is_told"), [(100, False), (30, True)])
def test_growth_that_many_small_tensors_explain(scalars: int, *, is_told: bool) -> None:
    """A table of scalars that fills up: each takes some 380 bytes beside its number."""
    sizes = [(step, 8) for step in range(1, 61) for _ in range(scalars)]
    items = [
        Item(number, size, step, Storage("cpu", 64 * number, size))
        for number, (step, size) in enumerate(sizes)
    ]
    storages = [item.storage for item in items if item.storage is not None]
    growth = account._beside_search(storages, items, _host([40_000 * step for step in range(60)]))
    assert (growth is not None) == is_told


@pytest.mark.parametrize(("views", "is_told"), [(1, True), (2049, False)])
def test_growth_that_many_views_explain(views: int, *, is_told: bool) -> None:
    """Of each storage, as much again is in the tensors that look at its rows."""
    items = _items(dict.fromkeys(range(1, 61), MIB))
    storages = [item.storage for item in items if item.storage is not None]
    host = _host([2 * MIB * step for step in range(60)])
    tensors = dict.fromkeys(storages, views)
    with_views = replace(host, tensors=tensors)
    assert (account._beside_search(storages, items, with_views) is not None) == is_told


@pytest.mark.parametrize(("last_step", "is_told"), [(14, False), (59, True)])
def test_what_no_storage_explains_must_have_come_in_the_second_half_too(
    last_step: int, is_told: bool
) -> None:
    """PyTorch's kernels keep something for the shapes of the first steps, while a cache fills."""
    items = _items(dict.fromkeys(range(20, 60), MIB))  # it is full, and what is new stays
    storages = [item.storage for item in items if item.storage is not None]
    kept = [MIB * min(step, 40) for step in range(60)]
    beside = [60 * MIB * min(step, last_step) // last_step for step in range(60)]
    host = _host([cached + other for cached, other in zip(kept, beside, strict=True)])
    assert account._beside_search(storages, items, host) is not None
    summed = replace(host, sums=[(2, 2 * MIB), (32, 32 * MIB), (48, 40 * MIB)])
    assert (account._beside_search(storages, items, summed) is not None) == is_told


@pytest.mark.parametrize(
    "values",
    [
        [64 * MIB] * 60,
        [MIB * min(step, 20) for step in range(60)],  # it fills, and stops
        [MIB * (step % 20) for step in range(60)],  # it rises and falls
        [MIB * (step // 45) * 30 for step in range(60)],  # all at once
    ],
)
def test_no_growth(values: list[int]) -> None:
    assert account._beside_search([], [], _host(values)) is None


def test_windows_are_of_steps_where_later_readings_are_rare() -> None:
    series = CounterSeries()
    for step in (*range(1, 33), 48, 64, 80, 96):
        series.add(step, MIB * min(step, 40))
    assert account._beside_search([], [], HostHeap(series)) is None


def test_many_owners_each_of_which_grows_now_and_then() -> None:
    items = _items(dict.fromkeys(range(1, 61), MIB))
    growth = account._beside_piles(items, set(), Looks.at_every_step(60))
    assert growth is not None
    assert growth.is_reached
    judged = {item.storage for item in items if item.storage is not None}
    assert account._beside_piles(items, judged, Looks.at_every_step(60)) is None


class _Hidden(torch.nn.Module):
    """Keeps what TorchScript keeps, which Python cannot read."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.jit.Attribute([], list[torch.Tensor])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x * 2)
        return x


@pytest.mark.skipif(allocated_bytes() is None, reason="this C library does not count")
@pytest.mark.filterwarnings("ignore")
def test_cannot_tell() -> None:
    model: Any = torch.jit.script(_Hidden())

    def run(watch: LeakWatch) -> None:
        for _ in range(30):
            model(torch.ones(128, 1024))
            watch.step()

    watch = LeakWatch()
    run(watch)
    report = watch.report()
    assert not report.found
    assert report.unexplained is not None
    assert "No leak" not in str(report)
    assert "with no owner found" in str(report)
    assert report.to_dict()["unexplained"]["bytes"] == report.unexplained.bytes
    with pytest.raises(LeakError, match="with no owner found"), no_leaks() as block:
        run(block)


def test_counter_counts_tensors() -> None:
    before = allocated_bytes()
    if before is None:
        pytest.skip("this C library does not count")
    buffer = (ctypes.c_char * (4 * MIB))()
    after = allocated_bytes()
    assert after is not None
    assert after - before >= ctypes.sizeof(buffer)


def test_growth_whose_place_newer_tensors_took_is_not_gone() -> None:
    """A ring gives up what is old for what is new."""
    births: Any = SimpleNamespace(
        latest_sum=(12, dict.fromkeys(range(2, 13), MIB)),
        looks=Looks.at_every_step(20),
        is_summed=True,
    )
    assert gone_growth(_items(dict.fromkeys(range(10, 21), MIB)), births) is None
    gone = gone_growth(_items({20: MIB}), births)
    assert gone is not None
    assert gone.bytes_per_step == MIB


def _born_after_step_10(sizes: list[int]) -> list[Item]:
    """A model of 40 layers, 40 MiB, and what came later."""
    born = [(MIB, 0)] * 40 + [(size, 11) for size in sizes]
    return [
        Item(place, size, step, Storage("cpu", place, size))
        for place, (size, step) in enumerate(born)
    ]


@pytest.mark.parametrize(
    ("sizes", "size_bytes"),
    [
        ([MIB + step for step in range(1, 21)], 20 * MIB + 210),
        ([100 * MIB], 0),
        ([MIB] * 40, 0),
        ([MIB + step for step in range(10)], 0),
        ([MIB // 4] * 40, 0),
    ],
    ids=["many", "one", "a copy", "few", "little"],
)
def test_growth_after_the_last_step_is_many_storages_and_much(
    sizes: list[int], size_bytes: int
) -> None:
    every = Looks.at_every_step(10)
    growth = account.growth_after_steps(_born_after_step_10(sizes), 10, every, ())
    assert (growth.bytes if growth is not None else 0) == size_bytes


@pytest.mark.parametrize(
    ("newest_look", "alive_before", "is_growth"),
    [(5, 0, True), (5, 20 * MIB, False), (38, 20 * MIB, True)],
    ids=["nothing went", "as much went", "few steps were not looked at"],
)
def test_what_replaced_others_in_the_last_steps_came_not_after_them(
    newest_look: int, alive_before: int, *, is_growth: bool
) -> None:
    """Nobody looked at the end of the last steps."""
    sizes = [MIB + step for step in range(1, 21)]
    items = [replace(item, born=41 if item.born else 0) for item in _born_after_step_10(sizes)]
    looks = Looks([1, 2, newest_look])
    growth = account.growth_after_steps(items, 40, looks, [(newest_look, alive_before)])
    assert (growth is not None) == is_growth
