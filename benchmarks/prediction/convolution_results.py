"""What convolutions of images, and the gradients of their inputs, ask for beside their results: one workspace
each.

    python convolution_results.py FILE.json [PART PARTS]

As ``weight_gradients.py``, with images of two different sides, as detectors and segmentation have them. A row is
the type, whether channels lie last, images, channels of image and result, height, width, kernel, stride, and the
bytes for the result and for the input's gradient. Some minutes on an H200.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from convolution_shapes import CHANNELS, beside, channels_of, drawn, is_small, write_rows

IMAGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
SIDES = (
    7,
    8,
    13,
    14,
    16,
    20,
    25,
    28,
    32,
    34,
    40,
    50,
    56,
    64,
    67,
    80,
    100,
    112,
    128,
    134,
    160,
    200,
    224,
    256,
    320,
)
KERNELS = {(1, 1): 6_000, (1, 2): 1_500, (3, 1): 4_000, (3, 2): 1_500, (5, 1): 500, (7, 2): 500}
"""How many are drawn of a kernel and stride, in each type and layout."""
SHARE_OF_LAST, SHARE_OF_SQUARES = 0.4, 0.6


def shapes() -> Iterator[tuple[Any, ...]]:
    """Type, whether channels lie last, images, channels of image and result, height, width, kernel, stride."""
    return drawn("results ", KERNELS, SHARE_OF_LAST, _drawn)


def _drawn(draws: random.Random, dtype: torch.dtype, kernel: int, stride: int) -> tuple[int, ...]:
    """Images, channels and sides of one that is not too large."""
    while True:
        images, height, base = draws.choice(IMAGES), draws.choice(SIDES), draws.choice(CHANNELS)
        width = height if draws.random() < SHARE_OF_SQUARES else draws.choice(SIDES)
        inputs, outputs = channels_of(draws, base, kernel)
        if is_small(dtype, images, (inputs, outputs), (height, width), kernel, stride):
            return images, inputs, outputs, height, width


def workspaces(shape: tuple[Any, ...]) -> tuple[int, int]:
    """Bytes that are asked for beside the result, and beside the input's gradient."""
    dtype, is_last, images, inputs, outputs, height, width, kernel, stride = shape
    layout = torch.channels_last if is_last else torch.contiguous_format
    place: Any = {"device": "cuda", "dtype": dtype, "memory_format": layout}
    x = torch.empty(images, inputs, height, width, **place)
    weight = torch.empty(outputs, inputs, kernel, kernel, **place)
    options = [stride] * 2, [kernel // 2] * 2, [1] * 2, False, [0] * 2, 1
    result, of_result = beside(lambda: torch.ops.aten.convolution(x, weight, None, *options))
    mask = [True, False, False]
    back = torch.ops.aten.convolution_backward
    _, of_input = beside(lambda: back(result, x, weight, None, *options, mask)[0])
    return of_result, of_input


if __name__ == "__main__":
    write_rows(shapes(), workspaces)
