"""Memory that operators of CUDA hold beside their results and give back before they return.

Sorting: aten/src/ATen/native/cuda/Sort.cpp (sort_stable: positions) and SortStable.cu, whose radix
sort (CUB) holds a second pair of keys and positions; Randperm.cu sorts random keys so. Inverse
Fourier transforms of real results: SpectralOps.cpp (_fft_c2r_cufft) copies its input, which cuFFT
overwrites. Symmetric eigenvalues: cuSOLVER's syevd. Single operators, measured on an H200.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

_INDEX_BYTES = 8
_MOST_SORTED_AT_ONCE = 4096
"""Numbers in a row that one block sorts in place (should_use_small_sort in Sort.cpp)."""
_FEWEST_SHUFFLED = 30_000
"""From here on randperm sorts on the device."""
_HISTOGRAM_SHARE = 5
"""Of a radix sort of one row: a byte for about so many numbers, for its counters."""
_FEWEST_ROWS_OF_SYEVD, _MATRICES_OF_SYEVD = 512, 4


def _sort(args: Any, kwargs: Any, outputs: list[Any]) -> list[int]:
    tensor, positions = outputs
    dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
    longest = tensor.shape[dim] if tensor.dim() else 1
    if longest <= _MOST_SORTED_AT_ONCE:
        return []
    pair = tensor.nbytes + positions.nbytes
    counters = tensor.numel() // _HISTOGRAM_SHARE if longest == tensor.numel() else 0
    held = [positions.nbytes, pair + counters]
    lies_apart = tensor.dim() > 1 and args[0].stride(dim) != 1
    return held + _turned(tensor, positions) if lies_apart else held


def _turned(tensor: Any, positions: Any) -> list[int]:
    """What is sorted along another dimension than the last is turned, and back again."""
    return [tensor.nbytes] * 3 + [positions.nbytes] * 2


def _shuffle(args: Any, kwargs: Any, outputs: list[Any]) -> list[int]:
    order = outputs[0]
    if order.numel() < _FEWEST_SHUFFLED:
        return []
    keys = order.numel() * _INDEX_BYTES
    pair = keys + order.nbytes
    return [keys, keys, order.nbytes, pair + order.numel() // _HISTOGRAM_SHARE]


def _eigenvalues(args: Any, kwargs: Any, outputs: list[Any]) -> list[int]:
    matrix = args[0]
    is_single = math.prod(matrix.shape[:-2]) == 1
    if not is_single or matrix.shape[-1] < _FEWEST_ROWS_OF_SYEVD:
        return []
    return [_MATRICES_OF_SYEVD * matrix.nbytes]


_RULES: dict[str, Callable[[Any, Any, list[Any]], list[int]]] = {
    "aten.sort": _sort,
    "aten.randperm": _shuffle,
    "aten._fft_c2r": lambda args, kwargs, outputs: [args[0].nbytes],
    "aten._linalg_eigh": _eigenvalues,
}


def scratch_bytes(name: str, args: Any, kwargs: Any, outputs: list[Any]) -> list[int]:
    """Bytes of what an operator holds together until it returns."""
    rule = _RULES.get(name)
    if rule is None or not outputs or outputs[0].fake_device.type != "cuda":
        return []
    return rule(args, kwargs, outputs)
