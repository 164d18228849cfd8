"""What a reduction asks for to pass partial sums between thread blocks.

Source: aten/src/ATen/native/cuda/Reduce.cuh (``setReduceConfig``,
``ReduceConfig::global_memory_size`` and ``semaphore_size``), as of PyTorch 2.11. The recording of
``gpt`` shows it for the sums of biases' gradients: 16 MiB and 16 bytes for 4096 x 512 numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramlens.cards.known_cards import Card
from vramlens.prediction.kernels.kernel_call import KernelCall, Rule

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_SUMS = ("sum", "mean", "nansum", "prod")
_NORMS = ("norm", "linalg_vector_norm")
_OF_NUMBERS = ("amax", "amin", "max", "min", "aminmax")
_MOMENTS = ("var", "std", "var_mean", "std_mean")
_POSITIONS = ("argmax", "argmin")
_BOOLEANS = ("any", "all")
_PLACE_OF_DIMS = dict.fromkeys(_NORMS, 2)
_PAIR_BYTES = 16
"""Of a number and where it stands; a moment has a mean, a sum of squares and two counts."""
_MOST_THREADS = 512
_WARP = 32
_THREADS_PER_PROCESSOR = 2048
_VECTOR = 4
_PART_OF_FOREACH = 65_536  # numbers
_LEAST_VALUES, _MOST_VALUES = 16, 256  # of one thread


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction of a contiguous tensor.

    Attributes:
        outputs, inputs: how many results, and of how many numbers each.
        is_inner: whether the numbers of one result lie side by side.
        bytes_each: of a partial result.
        processors: of the card.
    """

    outputs: int
    inputs: int
    is_inner: bool
    bytes_each: int
    processors: int

    def buffers(self) -> tuple[int, int]:
        """Bytes of the partial results and of the semaphores; zeros where one block does it all."""
        vector = self._output_vector()
        width, height = self._block(vector)
        threads = width * height
        input_step, output_step = (width, 1) if self.is_inner else (1, width)
        values = _up(self.inputs, input_step)
        if values < height * _LEAST_VALUES and values < _MOST_VALUES:
            return 0, 0
        values = _up(self.inputs, input_step * height)
        grid = _up(self.outputs // vector, output_step)
        resident_blocks = self.processors * (_THREADS_PER_PROCESSOR // threads)
        if values < _MOST_VALUES or grid > resident_blocks:
            return 0, 0
        blocks = max(
            min(_up(resident_blocks, grid), _up(values, _LEAST_VALUES)), _up(values, _MOST_VALUES)
        )
        if blocks <= 1:
            return 0, 0
        size = self.bytes_each * self.outputs * blocks
        if not self.is_inner:
            size *= width * vector
        return size, 4 * grid

    def _output_vector(self) -> int:
        """Results that a thread makes together: where they lie side by side, four if that
        divides them.
        """
        vector = 1 if self.is_inner else _VECTOR
        while self.outputs % vector:
            vector //= 2
        return vector

    def _block(self, vector: int) -> tuple[int, int]:
        most_threads = _MOST_THREADS // vector
        if self.is_inner:
            first, second = self.inputs, self.outputs
            if first >= 128:
                first //= _VECTOR
        else:
            first, second = self.outputs // vector, self.inputs
        first, second = _power_below(first, most_threads), _power_below(second, most_threads)
        width = min(first, _WARP)
        height = min(second, most_threads // width)
        return min(first, most_threads // height), height


def _up(number: int, step: int) -> int:
    return -(-number // step)


def _power_below(number: int, most: int) -> int:
    """The largest power of two that is not above either."""
    return most if number >= most else 1 << (max(1, number).bit_length() - 1)


def partial_sums(
    tensor: Any, dims: Any, results: int, card: Card, bytes_each: int = 4
) -> list[int]:
    """What a reduction asks for: nothing, or partial results and semaphores."""
    if not tensor.numel() or not results:
        return []
    inputs = tensor.numel() // results
    reduction = Reduction(
        outputs=results,
        inputs=inputs,
        is_inner=_is_inner(tensor, dims),
        bytes_each=bytes_each,
        processors=card.processors,
    )
    buffer, semaphores = reduction.buffers()
    return [buffer, semaphores] if buffer else []


def _reduced(call: KernelCall) -> list[int]:
    tensor, name = call.args[0], call.name.removeprefix("aten.")
    dims = call.argument(_PLACE_OF_DIMS.get(name, 1), "dim")
    has_positions = len(call.outputs) > 1 and name in ("max", "min")
    return partial_sums(
        tensor,
        dims,
        call.outputs[0].numel(),
        call.card,
        _PAIR_BYTES if has_positions else _bytes_each(name, tensor),
    )


def _bytes_each(name: str, tensor: Any) -> int:
    """Of a partial result (the ``arg_t`` of gpu_reduce_kernel in Reduce*Kernel.cu)."""
    size = int(tensor.element_size())
    if name in _BOOLEANS:
        return 1
    if name in _OF_NUMBERS:
        return 2 * size if name == "aminmax" else size
    if name in _POSITIONS:
        return _PAIR_BYTES
    accumulated = max(size, 4) if tensor.is_floating_point() or tensor.is_complex() else 8
    return 4 * accumulated if name in _MOMENTS else accumulated


def _is_inner(tensor: Any, dims: Any) -> bool:
    """Whether a reduction's numbers lie side by side in memory."""
    reduced_dims = _reduced_dimensions(tensor, dims)
    if reduced_dims is None:
        return True
    long_dims = [dim for dim in range(tensor.dim()) if tensor.shape[dim] > 1]
    inner_strides = [tensor.stride(dim) for dim in long_dims if dim in reduced_dims]
    outer_strides = [tensor.stride(dim) for dim in long_dims if dim not in reduced_dims]
    if not outer_strides:
        return True
    return bool(inner_strides) and min(inner_strides) < min(outer_strides)


def _reduced_dimensions(tensor: Any, dims: Any) -> set[int] | None:
    """The dimensions that an operator reduces; None: all."""
    if isinstance(dims, int):
        dims = [dims]
    if not isinstance(dims, (list, tuple)) or dims == []:
        return None
    return {dim % max(1, tensor.dim()) for dim in dims}


RULES: dict[str, Rule] = {
    f"aten.{name}": _reduced
    for name in (*_SUMS, *_NORMS, *_OF_NUMBERS, *_MOMENTS, *_POSITIONS, *_BOOLEANS)
}


def _parts_of_norms(call: KernelCall) -> list[int]:
    """Of the norms of many tensors: that of each part of each, as many for all as for the largest."""
    tensors = call.args[0]
    item = 8 if tensors[0].dtype is torch.float64 else 4
    largest = max(tensor.numel() for tensor in tensors)
    is_fast = call.argument(1, "ord", 2) in (1, 2, math.inf) and tensors[0].is_floating_point()
    return [len(tensors) * -(-largest // _PART_OF_FOREACH) * item] if is_fast else []


FIRST: dict[str, Rule] = {"aten._foreach_norm": _parts_of_norms}
"""What is asked for before the results (ForeachReduceOp.cu)."""
