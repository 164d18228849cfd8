"""What sorts on the device, and works in a radix sort's memory: sorting, shuffling, and gradients of
what was looked up, whose equal indices are put side by side.

A radix sort is CUB's (dispatch_radix_sort.cuh): a second pair of keys and values, a counter of every
value of a byte for each tile, and bins for each pass. The sizes of its tiles are those of an H100
(``operators.py`` in benchmarks/prediction), and so are all sizes here, to the byte.

aten/src/ATen/native/cuda: Sort.cpp (sort_stable) and SortStable.cu, whose kernels sort one row, few
rows by all their numbers, or many rows at once; Randperm.cu; EmbeddingBackwardKernel.cu
(embedding_backward_cuda_kernel); Indexing.cu (index_put_with_sort_kernel); ScanUtils.cuh;
TensorTopK.cu, as ``nmt_gru_beam`` and ``cell_atlas`` show.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from vramlens.prediction.kernels.kernel_call import KernelCall, Rule, used_and_gone
from vramlens.prediction.kernels.scratch_memory import copied_first

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_INDEX_BYTES = 8
_MOST_SORTED_AT_ONCE = 4096
"""Numbers in a row that one block sorts in place (should_use_small_sort in Sort.cpp)."""
_FEWEST_SHUFFLED = 30_000
"""From here on randperm sorts on the device."""
_FEWEST_SORTED_INDICES = 3072
"""Indices that an embedding's gradient is made from without a sort, at most."""
_ROWS_OF_THREAD = 10
_FEW_ROWS, _LONG_ROW = 128, 1_000_000
_TILES = {8: 4608, 4: 5376, 2: 5632, 1: 5632}
_TILE_OF_KEYS = 5760
_BYTES_OF_TILE, _BYTES_OF_PASS, _CUB_BYTES = 1024, 2048, 511
_ALIGNED = 256
_MAXIMUM = 2  # EmbeddingBagMode
_SCAN_BYTES, _COUNT_BYTES = 1279, 8
_LONG_ROWS = (
    (20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800),
    (math.inf, 400),
)  # fmt: skip
"""Of up to so many rows, the length from which several blocks search each for its largest numbers."""
_DIGITS, _THREADS, _BLOCKS_OF_PROCESSOR, _ITEMS_OF_THREAD = 256, 256, 6, (4, 64)


def radix_bytes(count: int, key_bytes: int, value_bytes: int = _INDEX_BYTES, bits: int = 0) -> int:
    """What a radix sort works in.

    Args:
        bits: of the keys that differ; by default all.
    """
    tile = _TILES[key_bytes] if value_bytes else _TILE_OF_KEYS
    second_pair = _aligned(count * key_bytes) + _aligned(count * value_bytes)
    passes = -(-(bits or 8 * key_bytes) // 8)
    tiles = -(-count // tile)
    return second_pair + tiles * _BYTES_OF_TILE + passes * _BYTES_OF_PASS + _CUB_BYTES


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _sort(call: KernelCall) -> list[int]:
    tensor, positions = call.outputs
    dim = call.argument(1, "dim", -1)
    longest = tensor.shape[dim] if tensor.dim() else 1
    if longest <= _MOST_SORTED_AT_ONCE:
        return []
    lies_apart = tensor.dim() > 1 and call.args[0].stride(dim) != 1
    turned = [tensor.nbytes, positions.nbytes, tensor.nbytes] if lies_apart else []
    return [*turned, *sorted_rows(tensor.numel(), longest, tensor.element_size())]


def sorted_rows(count: int, longest: int, key_bytes: int) -> list[int]:
    """What a sort of rows works in, beside its results."""
    rows, index = count // longest, count * _INDEX_BYTES
    if rows == 1 or longest >= _LONG_ROW:
        return [index, radix_bytes(longest, key_bytes)]
    if rows < _FEW_ROWS:
        return [index, index, count * key_bytes, radix_bytes(count, key_bytes)]
    return [index, index + count * key_bytes + _ALIGNED - 1]


def _shuffle(call: KernelCall) -> list[int]:
    count, keys = call.outputs[0].numel(), call.outputs[0].numel() * _INDEX_BYTES
    if count < _FEWEST_SHUFFLED:
        return []
    bits = min(64, math.ceil(math.log2(count) - 6 * math.log2(0.9)) + 24)
    item = call.outputs[0].element_size()
    return [keys, keys, count * item, radix_bytes(count, _INDEX_BYTES, item, bits)]


def _sorted_indices(indices: Any, counts: int) -> list[int]:
    """What the gradient of looked-up rows asks for first: its indices, sorted."""
    listed, item = indices.nbytes, indices.element_size()
    radix = radix_bytes(indices.numel(), item, item)
    return [listed, listed, listed, radix, -radix, -listed, *[listed] * counts]


def _sums_of_equals(indices: Any, rows: int, width: int) -> list[int]:
    """What the gradient of looked-up rows works in then: sums of rows with one index."""
    count, item = indices.numel(), indices.element_size()
    listed, most_distinct = count * item, min(count, rows)
    partial = count // _ROWS_OF_THREAD + most_distinct
    begins, sums = most_distinct * item, partial * width * 4
    distinct = [listed, _COUNT_BYTES, listed, _SCAN_BYTES, -_SCAN_BYTES, -listed]
    parts = [begins, begins, _SCAN_BYTES, -_SCAN_BYTES, _COUNT_BYTES, partial * item]
    return [*distinct, *parts, sums]


def _is_sorted(call: KernelCall) -> bool:
    """Whether the gradient of an embedding sorts its indices."""
    if call.name == "aten._embedding_bag_backward":  # of sums and means; a maximum knows its index
        mode, is_sparse = call.args[8:10]
        return bool(mode != _MAXIMUM and not is_sparse and call.args[1].numel())
    by_frequency = call.argument(4, "scale_grad_by_freq", default=False)
    return bool(call.args[1].numel() > _FEWEST_SORTED_INDICES or by_frequency)


def _embedding_first(call: KernelCall) -> list[int]:
    by_frequency = call.args[7] if "bag" in call.name else call.argument(4, "scale_grad_by_freq")
    sort = _sorted_indices(call.args[1], int(bool(by_frequency))) if _is_sorted(call) else []
    return [*copied_first(call), *sort]


def _embedding(call: KernelCall) -> list[int]:
    gradient, indices = call.args[:2]
    rows = call.args[6] if "bag" in call.name else call.args[2]
    return _sums_of_equals(indices, rows, gradient.shape[-1]) if _is_sorted(call) else []


def _added_by_index(call: KernelCall) -> list[int]:
    """Of numbers that are added where indices say: the place of each, sorted. Masks are made
    indices first; one that only overwrites with a number is none.
    """
    indices, added = call.args[1:3]
    if call.argument(3, "accumulate", default=False):
        count = _count_of_places(indices, added)
        return [count * _INDEX_BYTES] * 4 + [radix_bytes(count, _INDEX_BYTES)] if count else []
    return (
        [] if added.numel() == 1 else _indices_of_masks(indices, _count_of_places(indices, added))
    )


def _count_of_places(indices: Any, added: Any) -> int:
    """How many places indices name together; masks name as many as there are numbers to add."""
    chosen = [index for index in indices if index is not None]
    if any(_is_mask(index) for index in chosen):
        return int(added.shape[0]) if added.dim() else 0
    shapes = [tuple(index.shape) for index in chosen]
    return math.prod(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def _indices_of_masks(indices: Any, count: int) -> list[int]:
    """What masks are made first: for each place that holds, its index in every dimension."""
    masks = [index for index in indices if index is not None and _is_mask(index)]
    return [count * mask.dim() * _INDEX_BYTES for mask in masks]


def _is_mask(index: Any) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _selected(call: KernelCall) -> list[int]:
    indices = call.args[1]
    places = [place for place, index in enumerate(indices) if index is not None]
    return _indices_of_masks(indices, int(call.outputs[0].shape[places[0]])) if places else []


def _selected_by_mask(call: KernelCall) -> list[int]:
    return [call.outputs[0].numel() * call.args[1].dim() * _INDEX_BYTES]


def _middle(call: KernelCall) -> list[int]:
    """Of the middle of all numbers: they are sorted."""
    count, item = call.args[0].numel(), call.args[0].element_size()
    if len(call.outputs) > 1 or count <= _MOST_SORTED_AT_ONCE:
        return []
    return [count * item, count * _INDEX_BYTES, *sorted_rows(count, count, item)]


def _distinct(call: KernelCall) -> list[int]:
    """Of what a search for distinct numbers sorts, with their places where those are wanted."""
    count, item = call.args[0].numel(), call.args[0].element_size()
    if not call.argument(2, "return_inverse"):  # which number each one is
        return used_and_gone([count * item, radix_bytes(count, item, 0)])
    listed = count * _INDEX_BYTES
    return used_and_gone([count * item, listed, listed, radix_bytes(count, item)])


def _largest(call: KernelCall) -> list[int]:
    """Of a search for the largest numbers of each row: rows of many numbers by several blocks."""
    values, places = call.outputs
    dim, numbers = call.argument(2, "dim", -1), call.args[0]
    longest = numbers.shape[dim] if numbers.dim() else 1
    search = _search_in_blocks(numbers, longest, call.card.processors)
    largest_per_row = values.shape[dim] if values.dim() else 1
    if largest_per_row <= _MOST_SORTED_AT_ONCE or not call.argument(4, "sorted", default=True):
        return search
    sort = used_and_gone(sorted_rows(values.numel(), largest_per_row, values.element_size()))
    return [*search, places.nbytes, values.nbytes, *sort, places.nbytes]


def _search_in_blocks(numbers: Any, longest: int, processors: int) -> list[int]:
    rows = numbers.numel() // longest
    if longest < next(length for most_rows, length in _LONG_ROWS if rows <= most_rows):
        return []
    fewest_items, most_items = _ITEMS_OF_THREAD
    at_once = processors * _BLOCKS_OF_PROCESSOR * _THREADS
    items = max(fewest_items, min(-(-numbers.numel() // at_once), most_items)) * _THREADS
    blocks = rows * -(-longest // items)
    digit_bytes = 8 if numbers.dtype in (torch.float64, torch.int64) else 4
    row_buffers = [rows * numbers.element_size(), 2 * rows * 4, 2 * rows * digit_bytes]
    counts = [blocks * _DIGITS * 2, rows * _DIGITS * 4, blocks * 4, blocks * 4]
    buffers = [*row_buffers, *counts]
    scans = used_and_gone([_SCAN_BYTES]) * 2
    return [*buffers, *scans, *(-size for size in reversed(buffers))]


FIRST: dict[str, Rule] = {
    "aten._unique2": _distinct,
    "aten.embedding_dense_backward": _embedding_first,
    "aten._embedding_bag_backward": _embedding_first,
}
"""What is asked for before the results."""
RULES: dict[str, Rule] = {
    "aten.masked_select": _selected_by_mask,
    "aten.median": _middle,
    "aten.nanmedian": _middle,
    "aten.sort": _sort,
    "aten.randperm": _shuffle,
    "aten.embedding_dense_backward": _embedding,
    "aten._embedding_bag_backward": _embedding,
    "aten.topk": _largest,
    "aten.index": _selected,
    **dict.fromkeys(
        ("aten.index_put", "aten.index_put_", "aten._index_put_impl_"), _added_by_index
    ),
}
