"""The sizes that decide how a weight's gradient is summed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

TILE_SIDE = 64
TILE_BYTES = 4 * TILE_SIDE**2
"""Of the smallest tile that such a gradient is made in, in float32."""


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """The sizes of a convolution whose weight's gradient is asked for.

    Attributes:
        inputs, outputs: channels.
        side: the longer one of an image.
        results: numbers of one channel of all results.
        kernel: the longest side.
        places: of a kernel: nine of 3 x 3.
    """

    images: int
    inputs: int
    outputs: int
    side: int
    results: int
    kernel: int
    places: int
    stride: int

    @classmethod
    def of(cls, tensor: Any, weight: Any, output: Any, stride: int) -> WeightSizes:
        """What the tensors of a convolution say."""
        images, inputs = map(int, tensor.shape[:2])
        outputs, kernel = int(output.shape[1]), tuple(map(int, weight.shape[2:]))
        side, results = max(map(int, tensor.shape[2:])), int(output.numel()) // outputs
        return cls(images, inputs, outputs, side, results, max(kernel), math.prod(kernel), stride)

    @property
    def input_tiles(self) -> int:
        """How many tiles the channels of an image take at one place of the kernel."""
        return shared(self.inputs, TILE_SIDE)

    @property
    def output_tiles(self) -> int:
        """How many those of a result take."""
        return shared(self.outputs, TILE_SIDE)

    @property
    def least_channels(self) -> int:
        """Those of the side with fewer."""
        return min(self.inputs, self.outputs)

    @property
    def bytes_of_sum(self) -> int:
        """Of one partial sum as large as the weight."""
        return 4 * self.inputs * self.outputs * self.places


def shared(count: int, share: int) -> int:
    """How many shares of that size hold a count."""
    return -(-count // share)


def filled_up(size: int, multiple: int) -> int:
    """The least multiple that is no less."""
    return shared(size, multiple) * multiple
