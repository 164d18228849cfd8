"""What the gradients of convolutions' weights ask for beside their results: one workspace each.

    python weight_gradients.py FILE.json [PART PARTS]

Images as networks have them: usual channels, also after a concatenation, sides and batches, drawn at
random; kernels from 1 x 1 to 7 x 7, with and without a stride, in two types and both layouts. A row is
the type, whether channels lie last, images, channels of image and result, side, kernel, stride, and bytes.
Some minutes on an H200.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from convolution_shapes import CHANNELS, beside, channels_of, drawn, is_small, write_rows

IMAGES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
SIDES = (7, 8, 14, 16, 20, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 384, 512)
KERNELS = {
    (3, 1): 6_000,
    (3, 2): 2_500,
    (1, 1): 3_500,
    (1, 2): 600,
    (2, 2): 700,
    (4, 2): 900,
    (5, 1): 1_000,
    (7, 2): 500,
}
"""How many are drawn of a kernel and stride, in each type and layout."""
SHARE_OF_LAST = 0.5


def shapes() -> Iterator[tuple[Any, ...]]:
    """Type, whether channels lie last, images, channels of image and result, side, kernel, stride."""
    return drawn("", KERNELS, SHARE_OF_LAST, _drawn)


def _drawn(draws: random.Random, dtype: torch.dtype, kernel: int, stride: int) -> tuple[int, ...]:
    """Images, channels and side of one that is not too large."""
    while True:
        images, side, base = draws.choice(IMAGES), draws.choice(SIDES), draws.choice(CHANNELS)
        inputs, outputs = channels_of(draws, base, kernel)
        if is_small(dtype, images, (inputs, outputs), (side, side), kernel, stride):
            return images, inputs, outputs, side


def workspace(shape: tuple[Any, ...]) -> int:
    """Bytes that are asked for beside the gradient."""
    dtype, is_last, images, inputs, outputs, side, kernel, stride = shape
    layout = torch.channels_last if is_last else torch.contiguous_format
    place: Any = {"device": "cuda", "dtype": dtype, "memory_format": layout}
    padding = kernel // 2 if kernel % 2 else (kernel - stride) // 2
    x = torch.empty(images, inputs, side, side, **place)
    weight = torch.empty(outputs, inputs, kernel, kernel, **place)
    result_side = (side + 2 * padding - kernel) // stride + 1
    gradient = torch.empty(images, outputs, result_side, result_side, **place)
    options = [stride] * 2, [padding] * 2, [1] * 2, False, [0] * 2, 1
    back = torch.ops.aten.convolution_backward
    mask = [False, True, False]
    return beside(lambda: back(gradient, x, weight, None, *options, mask)[1])[1]


if __name__ == "__main__":
    write_rows(shapes(), lambda shape: [workspace(shape)])
