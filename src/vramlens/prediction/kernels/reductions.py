"""What a reduction asks for to pass partial sums between thread blocks.

Source: aten/src/ATen/native/cuda/Reduce.cuh (``setReduceConfig``,
``ReduceConfig::global_memory_size`` and ``semaphore_size``), as of PyTorch 2.11. The recording of
``gpt`` shows it for the sums of biases' gradients: 16 MiB and 16 bytes for 4096 x 512 numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST_THREADS = 512
_WARP = 32
_THREADS_PER_PROCESSOR = 2048
_VECTOR = 4
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
