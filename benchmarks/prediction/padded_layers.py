"""What convolutions of generators and autoencoders and their gradients ask for beside their results: one workspace
each.

    python padded_layers.py FILE.json [PART PARTS]

As ``convolution_results.py``: kernels of 4 x 4 and 2 x 2 with a stride (also of transposed convolutions, which run
the gradient of the input), kernels on images that were padded before (reflected), and large ones. A row is the type,
whether channels lie last, images, channels of image and result, height, width, padding, kernel, stride, and the bytes
for the result, the input's gradient and the weight's. A minute on an H200.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from convolution_shapes import CHANNELS, beside, channels_of, drawn, is_small, write_rows

IMAGES = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
SIDES = (4, 7, 8, 14, 16, 20, 28, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256, 320)
KERNELS = {
    (4, 2): 2_500,
    (4, 1): 800,
    (2, 2): 800,
    (3, 1): 1_500,
    (3, 2): 600,
    (5, 2): 600,
    (5, 1): 400,
    (7, 1): 500,
    (9, 1): 200,
}
"""How many are drawn of a kernel and stride, in each type and layout."""
PADDED = (3, 5, 7, 9)
"""Kernels that are also run on images padded before."""
SHARE_OF_LAST, SHARE_OF_SQUARES, SHARE_OF_PADDED = 0.3, 0.75, 0.5


def shapes() -> Iterator[tuple[Any, ...]]:
    """Type, layout, images, channels of image and result, height, width, padding, kernel, stride."""
    return drawn("padded ", KERNELS, SHARE_OF_LAST, _drawn)


def _drawn(draws: random.Random, dtype: torch.dtype, kernel: int, stride: int) -> tuple[int, ...]:
    """Images, channels, sides and padding of one that is not too large."""
    while True:
        images, height, base = draws.choice(IMAGES), draws.choice(SIDES), draws.choice(CHANNELS)
        width = height if draws.random() < SHARE_OF_SQUARES else draws.choice(SIDES)
        inputs, outputs = channels_of(draws, base, kernel)
        if draws.random() < 0.08:
            outputs = draws.choice((1, 3))
        padding = (kernel - stride) // 2 if kernel % 2 == 0 else kernel // 2
        if kernel == 4 and stride == 1:
            padding = draws.choice((0, 1))
        if kernel in PADDED and draws.random() < SHARE_OF_PADDED:
            height, width, padding = height + 2 * padding, width + 2 * padding, 0
        if is_small(dtype, images, (inputs, outputs), (height, width), kernel, stride):
            return images, inputs, outputs, height, width, padding


def workspaces(shape: tuple[Any, ...]) -> tuple[int, int, int]:
    """Bytes that are asked for beside the result, beside the input's gradient and beside the weight's."""
    dtype, is_last, images, inputs, outputs, height, width, padding, kernel, stride = shape
    layout = torch.channels_last if is_last else torch.contiguous_format
    place: Any = {"device": "cuda", "dtype": dtype, "memory_format": layout}
    x = torch.empty(images, inputs, height, width, **place)
    weight = torch.empty(outputs, inputs, kernel, kernel, **place)
    options = [stride] * 2, [padding] * 2, [1] * 2, False, [0] * 2, 1
    result, of_result = beside(lambda: torch.ops.aten.convolution(x, weight, None, *options))
    back = torch.ops.aten.convolution_backward
    masks = (0, [True, False, False]), (1, [False, True, False])
    of_input, of_weight = (
        beside(lambda at=at, mask=mask: back(result, x, weight, None, *options, mask)[at])[1]
        for at, mask in masks
    )
    return of_result, of_input, of_weight


if __name__ == "__main__":
    write_rows(shapes(), workspaces)
