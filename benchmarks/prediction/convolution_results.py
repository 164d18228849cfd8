"""What convolutions of images, and the gradients of their inputs, ask for beside their results: one workspace
each.

    python convolution_results.py FILE.json [PART PARTS]

As ``weight_gradients.py``, with images of two different sides, as detectors and segmentation have them. A row is
the type, whether channels lie last, images, channels of image and result, height, width, kernel, stride, and the
bytes for the result and for the input's gradient. Some minutes on an H200.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from weight_gradients import CHANNELS, MOST_BYTES, MOST_PRODUCTS, RATIOS, STEM_CHANNELS, STEMS

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
    for dtype in (torch.float32, torch.bfloat16):
        for is_last in (False, True):
            draws = random.Random(f"results {dtype} {is_last}")
            for (kernel, stride), count in KERNELS.items():
                for _ in range(int(count * (SHARE_OF_LAST if is_last else 1))):
                    yield dtype, is_last, *_drawn(draws, dtype, kernel, stride), kernel, stride


def _drawn(draws: random.Random, dtype: torch.dtype, kernel: int, stride: int) -> tuple[int, ...]:
    """Images, channels and sides of one that is not too large."""
    while True:
        images, height, base = draws.choice(IMAGES), draws.choice(SIDES), draws.choice(CHANNELS)
        width = height if draws.random() < SHARE_OF_SQUARES else draws.choice(SIDES)
        one, other = draws.choice(RATIOS)
        inputs, outputs = base * one, base * other
        if kernel != 1 and draws.random() < (0.5 if kernel == 7 else 0.06):
            inputs, outputs = draws.choice(STEMS), draws.choice(STEM_CHANNELS)
        points = images * (height // stride) * (width // stride)
        size_bytes = images * height * width * (inputs + outputs) * dtype.itemsize
        is_small = size_bytes < MOST_BYTES and points * inputs * outputs * kernel**2 < MOST_PRODUCTS
        if is_small and min(height, width) >= kernel and max(inputs, outputs) <= 2048:
            return images, inputs, outputs, height, width


def workspaces(shape: tuple[Any, ...]) -> tuple[int, int]:
    """Bytes that are asked for beside the result, and beside the input's gradient."""
    dtype, is_last, images, inputs, outputs, height, width, kernel, stride = shape
    layout = torch.channels_last if is_last else torch.contiguous_format
    place: Any = {"device": "cuda", "dtype": dtype, "memory_format": layout}
    x = torch.empty(images, inputs, height, width, **place)
    weight = torch.empty(outputs, inputs, kernel, kernel, **place)
    options = [stride] * 2, [kernel // 2] * 2, [1] * 2, False, [0] * 2, 1
    result, of_result = _beside(lambda: torch.ops.aten.convolution(x, weight, None, *options))
    mask = [True, False, False]
    back = torch.ops.aten.convolution_backward
    _, of_input = _beside(lambda: back(result, x, weight, None, *options, mask)[0])
    return of_result, of_input


def _beside(run: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, int]:
    """What a call gives, and the bytes that it asks for beside."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    result = run()
    most = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    return result, int(most - before - result.nbytes)


def main() -> None:
    part, parts = map(int, sys.argv[2:4]) if len(sys.argv) > 2 else (0, 1)
    rows = []
    for number, shape in enumerate(shapes()):
        if number % parts == part:
            rows.append([str(shape[0]), *shape[1:], *workspaces(shape)])
    answer = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "cudnn": torch.backends.cudnn.version(),
        "rows": rows,
    }
    with open(sys.argv[1], "w") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main()
