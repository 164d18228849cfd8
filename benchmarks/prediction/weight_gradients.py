"""What the gradients of convolutions' weights ask for beside their results: one workspace each.

    python weight_gradients.py FILE.json [PART PARTS]

Images as networks have them: usual channels, also after a concatenation, sides and batches, drawn at
random; kernels from 1 x 1 to 7 x 7, with and without a stride, in two types and both layouts. A row is
the type, whether channels lie last, images, channels of image and result, side, kernel, stride, and bytes.
Some minutes on an H200.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

CHANNELS = (
    8,
    16,
    24,
    32,
    48,
    64,
    80,
    96,
    112,
    128,
    160,
    192,
    224,
    256,
    320,
    384,
    448,
    512,
    640,
    768,
    1024,
)
RATIOS = ((1, 1), (1, 1), (1, 1), (1, 2), (2, 1), (1, 4), (4, 1), (3, 1))
"""Of the channels of an image to those of its result: the same, halved and doubled, concatenated."""
STEMS, STEM_CHANNELS = (1, 3, 4), (16, 32, 48, 64, 96, 128)
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
MOST_BYTES, MOST_PRODUCTS = 1_500_000_000, 1_500_000_000_000


def shapes() -> Iterator[tuple[Any, ...]]:
    """Type, whether channels lie last, images, channels of image and result, side, kernel, stride."""
    for dtype in (torch.float32, torch.bfloat16):
        for is_last in (False, True):
            draws = random.Random(f"{dtype} {is_last}")
            for (kernel, stride), count in KERNELS.items():
                for _ in range(int(count * (SHARE_OF_LAST if is_last else 1))):
                    yield dtype, is_last, *_drawn(draws, dtype, kernel, stride), kernel, stride


def _drawn(draws: random.Random, dtype: torch.dtype, kernel: int, stride: int) -> tuple[int, ...]:
    """Images, channels and side of one that is not too large."""
    while True:
        images, side, base = draws.choice(IMAGES), draws.choice(SIDES), draws.choice(CHANNELS)
        one, other = draws.choice(RATIOS)
        inputs, outputs = base * one, base * other
        if kernel in (3, 5, 7) and draws.random() < (0.5 if kernel == 7 else 0.06):
            inputs, outputs = draws.choice(STEMS), draws.choice(STEM_CHANNELS)
        points = images * (side // stride) ** 2
        size_bytes = images * side**2 * (inputs + outputs) * dtype.itemsize
        is_small = size_bytes < MOST_BYTES and points * inputs * outputs * kernel**2 < MOST_PRODUCTS
        if is_small and side >= kernel and max(inputs, outputs) <= 2048:
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
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    kept = torch.ops.aten.convolution_backward(
        gradient, x, weight, None, *options, [False, True, False]
    )
    most = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    return int(most - before - kept[1].nbytes)


def main() -> None:
    part, parts = map(int, sys.argv[2:4]) if len(sys.argv) > 2 else (0, 1)
    rows = []
    for number, shape in enumerate(shapes()):
        if number % parts == part:
            rows.append([str(shape[0]), *shape[1:], workspace(shape)])
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
