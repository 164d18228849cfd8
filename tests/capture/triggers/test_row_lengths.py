"""How long the rows of a batch are, read from vectors on the CPU and from tables of token numbers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from vramlens.capture.triggers.batch_tables import BatchTable, batch_tables
from vramlens.capture.triggers.row_lengths import row_lengths

torch = pytest.importorskip("torch")


def of_vector(*lengths: int) -> BatchTable:
    numbers = torch.tensor(lengths, dtype=torch.int64)
    return BatchTable(len(lengths), 1, 8, ctypes.string_at(numbers.data_ptr(), 8 * len(lengths)))


def of_table(columns: int, *lengths: int, left: bool = False, pad: int = 0) -> BatchTable:
    table = torch.full((len(lengths), columns), pad, dtype=torch.int64)
    for row, length in enumerate(lengths):
        start = columns - length if left else 0
        table[row, start : start + length] = torch.arange(100, 100 + length)
    raw = ctypes.string_at(table.data_ptr(), 8 * table.numel())
    return BatchTable(len(lengths), columns, 8, raw)


@pytest.mark.parametrize(
    "make",
    [
        lambda: of_vector(40, 400, 50, 30),
        lambda: of_table(400, 40, 400, 50, 30),
        lambda: of_table(500, 40, 400, 50, 30, pad=7),
        lambda: of_table(400, 40, 400, 50, 30, left=True),
    ],
    ids=["vector", "table", "padded table", "left"],
)
def test_one_row_is_far_longer(make: Callable[[], BatchTable]) -> None:
    assert row_lengths([make()]) == [{"rows": 4, "longest": 400, "total": 520}]


@pytest.mark.parametrize(
    "make",
    [
        lambda: of_vector(300, 400, 350, 380),
        lambda: of_vector(40, 400, -1, 30),
        lambda: of_vector(4, 40, 5, 3),
        lambda: of_vector(0, 0),
        lambda: of_table(400, 400, 400, 400, 400),
    ],
    ids=["even", "negative", "short", "zeros", "full"],
)
def test_what_are_no_uneven_lengths(make: Callable[[], BatchTable]) -> None:
    assert row_lengths([make()]) == []


def test_vectors_on_the_cpu_are_read_where_no_table_can_be() -> None:
    lengths = torch.tensor([71, 3001, 65, 59, 62])
    others: list[Any] = [lengths.float(), lengths.view(1, 5), torch.stack([lengths] * 2, 1)[:, 0]]
    tables = [table for table in batch_tables("cpu") if table.rows == 5]
    assert {"rows": 5, "longest": 3001, "total": 3258} in row_lengths(tables)
    assert lengths[1] == 3001, "it is only read"
    del others


def test_broken_tables_cost_nothing() -> None:
    assert row_lengths([BatchTable(3, 1, 3, b"abc")]) == []
