"""The batch itself when a request fails: token numbers, masks and labels, which are tables of integers; and
the lengths of its rows, which are vectors of integers on the CPU.

Tables lie on the GPU, and reading one waits for what the GPU still has to do, as PyTorch has done already when
it gave its cached blocks back before it gave up. Where that could wait for others, in a process group or
while a graph is captured, nothing is read. No kernel runs, nothing is allocated there. Vectors are read as the
system reads a process's memory: a file behind one that was cut short is an error then, and no signal.
"""

from __future__ import annotations

import ctypes
import os
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from vramlens.capture.names.live_heap import HeapClass, LiveHeap
from vramlens.capture.process.tracked_objects import tracked_of_types
from vramlens.capture.process.undisturbed import undisturbed
from vramlens.capture.process_group import initialized_group
from vramlens.ground.program_errors import own_errors

_FEWEST_COLUMNS, _MOST_BYTES, _MOST_TABLES = 64, 8 << 20, 8
_FEWEST_ROWS, _MOST_ROWS, _MOST_VECTORS = 2, 4096, 512

_OWN_MEMORY = "/proc/self/mem"
_ARRAY_TYPES = {8: "q", 4: "i"}
"""How Python's array calls integers of so many bytes."""

Copy = Callable[[int, int], bytes]
"""Reads so many bytes at an address."""


@dataclass(frozen=True, slots=True)
class BatchTable:
    """A table of integers that was read.

    Attributes:
        rows, columns: its sizes.
        item_bytes: of one number.
        numbers: the bytes of all, row after row.
    """

    rows: int
    columns: int
    item_bytes: int
    numbers: bytes

    @property
    def lines(self) -> list[bytes]:
        """The bytes of each row."""
        return rows_of(self.numbers, self.columns * self.item_bytes)

    @property
    def has_integers(self) -> bool:
        """Whether its numbers are signed integers, and no mask."""
        return self.item_bytes in _ARRAY_TYPES

    def integers(self) -> array[int]:
        """All of its numbers.

        Raises:
            KeyError: it has no integers.
        """
        return array(_ARRAY_TYPES[self.item_bytes], self.numbers)


def rows_of(numbers: bytes, row_bytes: int) -> list[bytes]:
    """The bytes of each row of a table."""
    return [numbers[start : start + row_bytes] for start in range(0, len(numbers), row_bytes)]


@dataclass(frozen=True, slots=True)
class BatchNumbers:
    """What was read.

    Attributes:
        tables: of the device, the largest first.
        vectors: of the CPU, each a table of one column.
    """

    tables: Sequence[BatchTable] = ()
    vectors: Sequence[BatchTable] = ()


@dataclass(frozen=True, slots=True)
class _Place:
    """A table on the device: where it begins, its sizes, and the bytes of one number."""

    address: int
    rows: int
    columns: int
    item_bytes: int

    @property
    def bytes(self) -> int:
        return self.rows * self.columns * self.item_bytes


def batch_numbers(
    device_type: str,
    copy: Copy | None = None,
    heap_class: HeapClass = LiveHeap,
) -> BatchNumbers:
    """The largest tables of integers on the device that are no larger than a batch, and vectors of integers
    on the CPU; without those that cannot be read. Never raises.

    Args:
        copy: reads from the device; by default CUDA's driver.
        heap_class: as ``names.tensor_names.named_tensors`` takes it.
    """
    tensors: list[Any] = []
    tables: list[BatchTable] = []
    vectors: list[BatchTable] = []
    torch: Any = sys.modules.get("torch")
    with own_errors():
        tensors = tracked_of_types({id(torch.Tensor): torch.Tensor})
    with own_errors(), undisturbed(), torch._C.DisableTorchFunction():
        vectors = _vectors(torch, tensors)
    with own_errors():
        if copy is not None or _may_read(torch, device_type):
            with undisturbed(), torch._C.DisableTorchFunction():
                places = _largest(_places_of(torch, heap_class(torch, device_type, tensors)))
            tables = [_read(place, copy or _from_gpu) for place in places]
    return BatchNumbers(tables, vectors)


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


def _read(place: _Place, copy: Copy) -> BatchTable:
    numbers = copy(place.address, place.bytes)
    return BatchTable(place.rows, place.columns, place.item_bytes, numbers)


def _largest(places: Iterable[_Place]) -> list[_Place]:
    batches = {place for place in places if place.bytes <= _MOST_BYTES}
    return sorted(batches, key=lambda place: (-place.rows * place.columns, place.address))[
        :_MOST_TABLES
    ]


def _vectors(torch: Any, tensors: Iterable[Any]) -> list[BatchTable]:
    """The vectors of integers on the CPU that may be a number for each row of a batch; none where the system
    does not show a process its memory.
    """
    if not os.path.exists(_OWN_MEMORY):
        return []
    memory = os.open(_OWN_MEMORY, os.O_RDONLY)
    try:
        vectors: list[BatchTable] = []
        for place in islice(_places_of_vectors(torch, tensors), _MOST_VECTORS):
            with suppress(OSError):
                vectors.append(_read(place, partial(_from_memory, memory)))
        return vectors
    finally:
        os.close(memory)


def _from_memory(memory: int, address: int, size_bytes: int) -> bytes:
    numbers = os.pread(memory, size_bytes, address)
    if len(numbers) < size_bytes:
        raise OSError("a part of it cannot be read")
    return numbers


def _places_of_vectors(torch: Any, tensors: Iterable[Any]) -> Iterator[_Place]:
    heap = LiveHeap(torch, "cpu", [])
    is_lazy_copy = getattr(torch._C, "_is_cow_tensor", None)  # its address would make the copy
    for tensor in tensors:
        dtype = heap.tensor.dtype.__get__(tensor)
        if dtype not in (torch.int64, torch.int32) or not heap.is_plain(tensor):
            continue
        sizes = tuple(heap.tensor.shape.__get__(tensor))
        is_vector = len(sizes) == 1 and _FEWEST_ROWS <= sizes[0] <= _MOST_ROWS
        if is_vector and not (is_lazy_copy is not None and is_lazy_copy(tensor)):
            yield from _place(heap, tensor, sizes[0], 1)


def _places_of(torch: Any, heap: LiveHeap) -> Iterator[_Place]:
    integers = (torch.int64, torch.int32, torch.bool, torch.uint8)
    for tensor in heap.live.get("tensor", ()):
        dtype = heap.tensor.dtype.__get__(tensor)
        if not heap.is_plain(tensor) or dtype not in integers:
            continue
        sizes = tuple(heap.tensor.shape.__get__(tensor))
        if len(sizes) != 2 or sizes[1] < _FEWEST_COLUMNS:
            continue
        yield from _place(heap, tensor, *sizes)


def _place(heap: LiveHeap, tensor: Any, rows: int, columns: int) -> Iterator[_Place]:
    """Yields where a tensor's numbers lie, if all of them are in its storage, one after the other."""
    storage = heap.storage(tensor)
    if storage is None or not heap.tensor.is_contiguous(tensor):
        return
    item_bytes: int = heap.tensor.dtype.__get__(tensor).itemsize
    skipped_bytes = storage.offset * item_bytes
    place = _Place(storage.address + skipped_bytes, rows, columns, item_bytes)
    if skipped_bytes + place.bytes <= storage.size_bytes:
        yield place
