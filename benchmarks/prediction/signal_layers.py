"""What convolutions of signals (``Conv1d``) and their gradients ask for beside their results: one workspace each.

    python signal_layers.py FILE.json [PART PARTS]

As ``convolution_results.py``, of one dimension: layers of transformers' feed-forward networks, of vocoders and of
forecasts. A row is the type, whether channels lie last (never), images, channels of image and result, length,
padding, kernel, stride, and the bytes for the result, the input's gradient and the weight's. A minute on an H200.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from convolution_shapes import CHANNELS, RATIOS, beside, drawn, is_small, write_rows

IMAGES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512)
LENGTHS = (
    12,
    16,
    24,
    48,
    50,
    64,
    96,
    100,
    128,
    168,
    200,
    256,
    336,
    400,
    512,
    720,
    1000,
    1024,
    1500,
    2048,
)
LONG = (3000, 4096, 8192, 16000, 16384, 32768)
"""Of few images: samples of a sound."""
KERNELS = {
    (1, 1): 2_500,
    (3, 1): 2_500,
    (3, 2): 800,
    (5, 1): 800,
    (7, 1): 500,
    (9, 1): 300,
    (15, 1): 200,
    (4, 2): 400,
}
"""How many are drawn of a kernel and stride, in each type."""
FEW_IMAGES = 32


def shapes() -> Iterator[tuple[Any, ...]]:
    """Type, layout, images, channels of image and result, length, padding, kernel, stride."""
    return drawn("signals ", KERNELS, 0, _drawn)


def _drawn(draws: random.Random, dtype: torch.dtype, kernel: int, stride: int) -> tuple[int, ...]:
    """Images, channels, length and padding of one that is not too large."""
    while True:
        images, base = draws.choice(IMAGES), draws.choice(CHANNELS)
        is_long = images <= FEW_IMAGES and draws.random() < 0.25
        length = draws.choice(LONG if is_long else LENGTHS)
        one, other = draws.choice(RATIOS)
        inputs, outputs = base * one, base * other
        if draws.random() < 0.08:
            inputs = draws.choice((1, 7, 12, 21, 80))
        padding = draws.choice((0, (kernel - 1) // 2))
        is_fit = length + 2 * padding >= kernel
        if is_fit and is_small(dtype, images, (inputs, outputs), (1, length), 1, 1):
            return images, inputs, outputs, length, padding


def workspaces(shape: tuple[Any, ...]) -> tuple[int, int, int]:
    """Bytes that are asked for beside the result, beside the input's gradient and beside the weight's."""
    dtype, _, images, inputs, outputs, length, padding, kernel, stride = shape
    x = torch.empty(images, inputs, length, device="cuda", dtype=dtype)
    weight = torch.empty(outputs, inputs, kernel, device="cuda", dtype=dtype)
    options = [stride], [padding], [1], False, [0], 1
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
