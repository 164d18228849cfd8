"""How much of a batch is padding when a request fails, read from the batch itself.

A batch of token numbers, or of the mask of them, is a table of integers. Where its last columns hold one
and the same value in all rows, they are padding; where the first do, it is padded on the left.

The table lies on the GPU, and reading it waits for what the GPU still has to do, as PyTorch has done
already when it gave its cached blocks back before it gave up. Where that could wait for others, in a
process group or while a graph is captured, nothing is read. No kernel runs, nothing is allocated there.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from vramlens.capture.names.live_heap import LiveHeap
from vramlens.capture.process.tracked_objects import tracked_of_types
from vramlens.capture.process.undisturbed import no_collection, no_other_thread
from vramlens.capture.process_group import initialized_group
from vramlens.ground.program_errors import own_errors

_FEWEST_COLUMNS, _MOST_BYTES, _MOST_TABLES = 64, 8 << 20, 8
_LEAST_PADDING = 0.1
"""Of the columns: the first one may be the token that begins every text."""
_FEWEST_NUMBERS = 3
"""Different ones in a table of token numbers; a mask has two, and its rows are two runs."""

Copy = Callable[[int, int], bytes]
"""Reads so many bytes at an address."""


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of integers: where it begins, its sizes, and the bytes of one number."""

    address: int
    rows: int
    columns: int
    item_bytes: int

    @property
    def bytes(self) -> int:
        return self.rows * self.columns * self.item_bytes


def padded_batch(device_type: str, copy: Copy | None = None) -> dict[str, int] | None:
    """The batch of which there are most tables (numbers, mask, labels), of several that with most
    padding: ``rows``, ``columns`` and how many of them are used, ``used_columns``; None where nothing
    is padded, or it cannot be read. Never raises.

    Args:
        copy: reads from the device; by default CUDA's driver.
    """
    with own_errors():
        torch: Any = sys.modules.get("torch")
        if copy is None and not _may_read(torch, device_type):
            return None
        padded = [*_padded(_tables(torch, device_type), copy or _from_gpu)]
        tables = Counter((batch["rows"], batch["columns"]) for batch in padded)

        def weight(batch: dict[str, int]) -> tuple[int, int]:
            rows, columns = batch["rows"], batch["columns"]
            return tables[rows, columns], rows * (columns - batch["used_columns"])

        return max(padded, key=weight, default=None)
    return None


def _may_read(torch: Any, device_type: str) -> bool:
    """Whether a read waits for this process's own work alone."""
    if device_type != "cuda" or torch.version.hip or initialized_group() is not None:
        return False
    return not torch.cuda.is_current_stream_capturing()


def _from_gpu(address: int, size_bytes: int) -> bytes:
    driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    target = ctypes.create_string_buffer(size_bytes)
    error = driver.cuMemcpyDtoH_v2(target, ctypes.c_uint64(address), ctypes.c_size_t(size_bytes))
    if error:
        raise OSError(error, "cuMemcpyDtoH failed")
    return target.raw


def _tables(torch: Any, device_type: str) -> list[_Table]:
    """The largest tables of integers on the device that are no larger than a batch."""
    with no_collection(), no_other_thread(), torch._C.DisableTorchFunction():
        tensors = tracked_of_types({id(torch.Tensor): torch.Tensor})
        heap = LiveHeap(torch, device_type, tensors)
        tables = {table for table in _tables_of(torch, heap) if table.bytes <= _MOST_BYTES}
    return sorted(tables, key=lambda table: (-table.rows * table.columns, table.address))[
        :_MOST_TABLES
    ]


def _tables_of(torch: Any, heap: LiveHeap) -> Iterator[_Table]:
    integers = (torch.int64, torch.int32, torch.bool, torch.uint8)
    for tensor in heap.live.get("tensor", ()):
        dtype = heap.tensor.dtype.__get__(tensor)
        if not heap.is_plain(tensor) or dtype not in integers:
            continue
        sizes = tuple(heap.tensor.shape.__get__(tensor))
        if len(sizes) != 2 or sizes[1] < _FEWEST_COLUMNS or not heap.tensor.is_contiguous(tensor):
            continue
        storage = heap.storage(tensor)
        if storage is not None:
            start = storage.address + storage.offset * dtype.itemsize
            yield _Table(start, *sizes, dtype.itemsize)


def _padded(tables: list[_Table], copy: Copy) -> Iterator[dict[str, int]]:
    for table in tables:
        used = used_columns(copy(table.address, table.bytes), table.columns, table.item_bytes)
        if table.columns - used >= _LEAST_PADDING * table.columns:
            yield {"rows": table.rows, "columns": table.columns, "used_columns": used}


def used_columns(table: bytes, columns: int, item_bytes: int) -> int:
    """How many columns of a table are no padding; all where it is no batch of tokens, nor a mask.

    Args:
        table: its numbers, row after row.
        item_bytes: of each number.
    """
    width = columns * item_bytes
    rows = [table[start : start + width] for start in range(0, len(table), width)]
    padding = max(_common_run(rows, item_bytes, at_end=at_end) for at_end in (False, True))
    if not 0 < padding < columns:
        return columns
    is_batch = _is_mask(rows, item_bytes) or _has_many_numbers(rows, item_bytes)
    return columns - padding if is_batch else columns


def _common_run(rows: list[bytes], item_bytes: int, *, at_end: bool) -> int:
    """How many columns at the end, or at the begin, hold one number in all rows."""
    ends = {row[-item_bytes:] if at_end else row[:item_bytes] for row in rows}
    return min(_run(row, item_bytes, at_end=at_end) for row in rows) if len(ends) == 1 else 0


def _run(row: bytes, item_bytes: int, *, at_end: bool) -> int:
    """How often a row's last, or first, number is repeated there."""
    number = row[-item_bytes:] if at_end else row[:item_bytes]
    matches = row.endswith if at_end else row.startswith
    shortest, longest = 1, len(row) // item_bytes
    while shortest < longest:
        middle = (shortest + longest + 1) // 2
        if matches(number * middle):
            shortest = middle
        else:
            longest = middle - 1
    return shortest


def _is_mask(rows: list[bytes], item_bytes: int) -> bool:
    """Whether each row is a run of one number and then a run of another one, or one run."""
    columns = len(rows[0]) // item_bytes
    runs = (
        (_run(row, item_bytes, at_end=False), _run(row, item_bytes, at_end=True)) for row in rows
    )
    return all(first + last in (columns, 2 * columns) for first, last in runs)


def _has_many_numbers(rows: list[bytes], item_bytes: int) -> bool:
    """Whether a table has more different numbers than a mask."""
    numbers: set[bytes] = set()
    for row in rows:
        numbers.update(row[start : start + item_bytes] for start in range(0, len(row), item_bytes))
        if len(numbers) >= _FEWEST_NUMBERS:
            return True
    return False
