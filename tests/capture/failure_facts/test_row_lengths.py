"""How long the rows of a batch are, read from vectors on the CPU and from tables of token numbers."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramlens.capture.failure_facts.batch_tables import BatchNumbers, BatchTable, batch_numbers
from vramlens.capture.failure_facts.row_lengths import row_lengths

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
    "batch",
    [
        lambda: BatchNumbers(vectors=[of_vector(40, 400, 50, 30)]),
        lambda: BatchNumbers(tables=[of_table(400, 40, 400, 50, 30)]),
        lambda: BatchNumbers(tables=[of_table(500, 40, 400, 50, 30, pad=7)]),
        lambda: BatchNumbers(tables=[of_table(400, 40, 400, 50, 30, left=True)]),
    ],
    ids=["vector", "table", "padded table", "left"],
)
def test_one_row_is_far_longer(batch: Callable[[], BatchNumbers]) -> None:
    assert row_lengths(batch()) == [{"rows": 4, "longest": 400, "total": 520}]


@pytest.mark.parametrize(
    "batch",
    [
        lambda: BatchNumbers(vectors=[of_vector(300, 400, 350, 380)]),
        lambda: BatchNumbers(vectors=[of_vector(40, 400, -1, 30)]),
        lambda: BatchNumbers(vectors=[of_vector(4, 40, 5, 3)]),
        lambda: BatchNumbers(vectors=[of_vector(0, 0)]),
        lambda: BatchNumbers(tables=[of_table(400, 400, 400, 400, 400)]),
        lambda: BatchNumbers(),
    ],
    ids=["even", "negative", "short", "zeros", "full", "nothing"],
)
def test_what_are_no_uneven_lengths(batch: Callable[[], BatchNumbers]) -> None:
    assert row_lengths(batch()) == []


def lengths_read() -> list[dict[str, int]]:
    """Of the vectors of five that are alive."""
    vectors = [vector for vector in batch_numbers("cpu").vectors if vector.rows == 5]
    return row_lengths(BatchNumbers(vectors=vectors))


def test_vectors_on_the_cpu_are_read() -> None:
    lengths = torch.tensor([71, 3001, 65, 59, 62])
    others: list[Any] = [lengths.float(), lengths.view(1, 5), torch.stack([lengths] * 2, 1)[:, 0]]
    assert {"rows": 5, "longest": 3001, "total": 3258} in lengths_read()
    assert lengths[1] == 3001, "it is only read"
    del others


def test_a_mapped_file_that_was_cut_short(tmp_path: Path) -> None:
    """Its pages are gone: who looks at them gets SIGBUS."""
    path = tmp_path / "lengths"
    path.write_bytes(b"\x01" * 8 * 4096 * 4)
    mapped = torch.from_file(str(path), shared=True, size=4096 * 4, dtype=torch.int64)
    part = mapped[4096 * 3 : 4096 * 3 + 5]
    path.write_bytes(b"")
    lengths = torch.tensor([72, 3001, 65, 59, 62])
    assert lengths_read() == [{"rows": 5, "longest": 3001, "total": 3259}]
    del part, lengths


def test_a_storage_that_is_smaller_than_its_tensor() -> None:
    lengths = torch.tensor([73, 3001, 65, 59, 62])
    lengths.untyped_storage().resize_(8)
    assert lengths_read() == []


def test_a_lazy_copy_stays_one() -> None:
    lengths = torch.tensor([74, 3001, 65, 59, 62])
    lazy = torch._lazy_clone(lengths)
    lengths_read()
    assert torch._C._is_cow_tensor(lazy)


def test_large_tables_that_are_no_batch_cost_little() -> None:
    """A mask of patches has two numbers in any order, and no padding."""
    table = BatchTable(8, 1 << 20, 1, bytes(range(2)) * (4 << 20))
    begins = time.process_time()
    assert row_lengths(BatchNumbers(tables=[table] * 8)) == []
    assert time.process_time() - begins < 2  # looking at each number takes five


def test_broken_tables_cost_nothing() -> None:
    assert row_lengths(BatchNumbers(vectors=[BatchTable(3, 1, 3, b"abc")])) == []
