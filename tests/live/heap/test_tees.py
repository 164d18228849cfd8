"""Halves of a tee: what each has yet to read, and which of them keeps it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from vramlens import LeakWatch
from vramlens.live.growth import lagging_tees
from vramlens.live.heap import tees
from vramlens.live.heap.tees import entries_of, is_tee
from vramlens.live.leaks.leak_report import LeakReport

torch = pytest.importorskip("torch")


def test_counts() -> None:
    ahead, behind = itertools.tee(range(1000, 2000))
    assert is_tee(ahead)
    assert entries_of(ahead) == (0, 0)
    for _ in range(130):
        next(ahead)
    next(behind)
    assert entries_of(behind) == (130, 129)
    assert entries_of(ahead) == (130 - 2 * 57, 0)


def test_the_place_of_the_number_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tees._has_index_there()
    ahead, behind = itertools.tee(range(1000, 2000))
    for _ in range(130):
        next(ahead)
    monkeypatch.setattr(tees, "_INDEX_AT", 0)  # the count of references
    assert not tees._has_index_there()
    monkeypatch.setattr(tees, "_INDEX_AT", 1 << 20)
    assert not tees._has_index_there()
    monkeypatch.setattr(tees, "_IS_INDEX_KNOWN", False)
    assert entries_of(behind)[1] == 130


def _batches(count: int) -> Iterator[Any]:
    for _ in range(count):
        yield {"images": torch.zeros(4096)}


def test_the_lagging_half_keeps_what_it_has_not_read() -> None:
    for steps in (30, 90):
        report = _read_ahead(steps)
        (leak,) = report.found
        assert leak.verdict == "proven"
        assert leak.owner is not None
        assert (leak.owner.name, leak.owner.kind) == ("preview", "tee")
        assert leak.owner.source == "stream, preview = itertools.tee(_batches(steps + 1))"
        assert leak.bytes_per_step == 4 * 4096
        assert "tee" in leak.fix


def _read_ahead(steps: int) -> LeakReport:
    stream, preview = itertools.tee(_batches(steps + 1))
    next(preview)
    watch = LeakWatch()
    for _ in itertools.islice(stream, steps):
        watch.step()
    return watch.report()


def test_halves_that_are_read_at_the_same_pace() -> None:
    for steps in (30, 90):
        first, second = itertools.tee(_batches(steps))
        watch = LeakWatch()
        for _ in zip(first, second, strict=True):
            watch.step()
        assert not watch.report().found


def test_of_a_half_that_lags_very_far_only_so_many_blocks_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tees, "_MOST_BLOCKS", 10)
    ahead, behind = itertools.tee(range(10_000))
    next(itertools.islice(ahead, 9_000, None))
    assert entries_of(behind)[0] == 10 * 57


class _SearchOf:
    """A search that reached some objects, and whose time ends after so many looks at the clock."""

    def __init__(self, order: list[Any], looks: int = 1_000_000) -> None:
        self.order, self.looks = order, looks
        self.roots: dict[int, Any] = {}

    @property
    def is_over(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def _ten_halves() -> tuple[_SearchOf, dict[int, int]]:
    """Ten halves of one tee, each 57 entries further than the one before, and their blocks."""
    halves = list(itertools.tee(range(10_000), 10))
    for number, half in enumerate(halves):
        next(itertools.islice(half, 57 * (number + 1), None))
    blocks = list(tees.blocks_from(halves[0]))
    search = _SearchOf([*halves, *blocks])
    return search, {id(block): place for place, block in enumerate(search.order) if place >= 10}


def test_each_block_is_given_out_in_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    search, blocks = _ten_halves()
    walked: list[int] = []
    block_after = tees._block_after
    monkeypatch.setattr(
        tees, "_block_after", lambda block: (walked.append(id(block)), block_after(block))[1]
    )
    keepers: Any = lagging_tees._keepers_of(search, blocks)
    assert set(keepers.values()) == {0}  # the first lags farthest
    assert len(walked) <= 2 * len(blocks) + 10


def test_halves_are_left_where_the_search_came_by_them_when_its_time_is_over() -> None:
    search, blocks = _ten_halves()
    search.looks = 12
    assert lagging_tees._keepers_of(search, blocks) == {}  # type: ignore[arg-type]
