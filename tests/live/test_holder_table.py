"""Who holds the most: rows that sum to all there is in tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramlens.live.heap.search_time import LONG, SearchTime  # noqa: E402
from vramlens.live.holder_table import HolderTable, holders, nearest_holders  # noqa: E402


class _Result:
    def __init__(self, scores: Any) -> None:
        self.scores = scores


_kept: list[Any] = []


@pytest.fixture
def thousands() -> Iterator[list[Any]]:
    """Thousands of tensors: in objects of a dict, one by one, and saved by an autograd graph."""
    _kept.append({number: _Result(torch.ones(1 + number % 99)) for number in range(3000)})
    _kept.extend(torch.ones(100 + number) for number in range(40))
    total = torch.ones(1, requires_grad=True)
    for _ in range(20):
        total = (total * torch.ones(300)).exp().sum()
    _kept.append(total)
    yield _kept
    _kept.clear()


def _assert_complete(table: HolderTable) -> None:
    rows = [size for _, size, _ in table.rows]
    assert sum(rows) + sum(other.bytes for other in table.others) == table.live_bytes


@pytest.mark.parametrize("top", [1, 3, 10, 100])
def test_every_byte_is_in_one_row(thousands: list[Any], top: int) -> None:
    for table in (holders(top), nearest_holders(top, LONG).table):
        _assert_complete(table)
        assert len(table.rows) <= top
        kept_bytes = sum(result.scores.nbytes for result in thousands[0].values())
        assert table.live_bytes > kept_bytes + sum(4 * (100 + number) for number in range(40))


def test_all_storages_sum_to_the_total(thousands: list[Any]) -> None:
    held = nearest_holders(3, LONG, most_looks=2)
    counts = [count for _, _, count in held.table.rows]
    assert sum(storage.size_bytes for storage in held.storages) == held.table.live_bytes
    assert sum(counts) + sum(one.storages for one in held.table.others) == len(held.storages)
    assert len(held.looks) == 2


@pytest.mark.usefixtures("thousands")
def test_what_is_cut_says_how_to_see_it() -> None:
    table = holders(1)
    (smaller,) = (other for other in table.others if other.kind == "smaller")
    row = f"{smaller.holders} smaller holders, {smaller.storages:,} tensors"
    text = " ".join(str(table).split())
    assert f"{row} (holders(top=5) shows more)" in text
    assert max(map(len, str(table).splitlines())) <= 80


def test_what_no_variable_leads_to_is_counted() -> None:
    tensor = torch.ones(12_345)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))
    address = id(tensor)
    del tensor
    try:
        table = holders(5)
    finally:
        ctypes.pythonapi.Py_DecRef(ctypes.cast(address, ctypes.py_object))
    (unreached,) = (other for other in table.others if other.kind == "unreached")
    assert unreached.bytes >= 4 * 12_345
    _assert_complete(table)


def test_a_search_that_was_cut_short_counts_what_it_did_not_reach(thousands: list[Any]) -> None:
    table = nearest_holders(5, SearchTime(0.0)).table
    assert table.notes
    assert table.live_bytes >= sum(result.scores.nbytes for result in thousands[0].values())
    _assert_complete(table)
