"""What cuDNN asks for when it tries all plans of a convolution (``torch.backends.cudnn.benchmark``), and then for
the plan that it takes: for the result, the input's gradient and the weight's.

    python tried_plans.py FILE.json [PART PARTS]

Shapes as in ``convolution_results.py``, smaller and with the layers of generators. A row is the type, whether
channels lie last, images, channels of image and result, height, width, kernel, stride, and for each of the three the
bytes of the first call and of the second; None where memory ran out. It ends after ``SECONDS``, as trials take long.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from convolution_shapes import CHANNELS, beside, channels_of, drawn, is_small, write_rows

SECONDS = 480
IMAGES = (1, 2, 4, 8, 16, 20, 32, 64, 100, 128, 256)
SIDES = (4, 7, 8, 14, 16, 20, 28, 32, 40, 56, 64, 80, 112, 128, 160, 224, 256)
KERNELS = {(1, 1): 9, (1, 2): 2, (3, 1): 14, (3, 2): 4, (4, 2): 4, (5, 1): 2, (7, 2): 2}
"""How often a kernel and stride come in a round."""
SHARE_OF_SQUARES, MOST_PRODUCTS = 0.85, 3e11
_BACK = torch.ops.aten.convolution_backward
_PLACE = "cuda"


def shapes() -> Iterator[tuple[Any, ...]]:
    """Rounds of shapes until the time is up."""
    end, number = time.monotonic() + SECONDS, 0
    while True:
        number += 1
        for shape in drawn(f"plans {number} ", KERNELS, 1.0, _drawn):
            if time.monotonic() > end:
                return
            yield shape


def _drawn(draws: random.Random, dtype: torch.dtype, kernel: int, stride: int) -> tuple[int, ...]:
    """Images, channels and sides of one that is not too large."""
    while True:
        images, height, base = draws.choice(IMAGES), draws.choice(SIDES), draws.choice(CHANNELS)
        width = height if draws.random() < SHARE_OF_SQUARES else draws.choice(SIDES)
        inputs, outputs = channels_of(draws, base, kernel)
        products = images * height * width * inputs * outputs * kernel**2 // stride**2
        is_quick = products < MOST_PRODUCTS
        if is_quick and is_small(dtype, images, (inputs, outputs), (height, width), kernel, stride):
            return images, inputs, outputs, height, width


def workspaces(shape: tuple[Any, ...]) -> list[int | None]:
    """Bytes beside the result, the input's and the weight's gradient, each at the first and the second call."""
    dtype, is_last, images, inputs, outputs, height, width, kernel, stride = shape
    layout = torch.channels_last if is_last else torch.contiguous_format
    place: Any = {"device": _PLACE, "dtype": dtype, "memory_format": layout}
    x = torch.empty(images, inputs, height, width, **place)
    weight = torch.empty(outputs, inputs, kernel, kernel, **place)
    padding = 1 if kernel == 4 else kernel // 2
    options = [stride] * 2, [padding] * 2, [1] * 2, False, [0] * 2, 1

    def forward() -> torch.Tensor:
        return torch.ops.aten.convolution(x, weight, None, *options)  # type: ignore[no-any-return]

    # No call before: its plan would be taken without a trial.
    torch.backends.cudnn.benchmark = True
    sides = [(side + 2 * padding - kernel) // stride + 1 for side in (height, width)]
    result = torch.empty(images, outputs, *sides, **place)
    calls: list[Callable[[], torch.Tensor]] = [
        forward,
        lambda: _BACK(result, x, weight, None, *options, [True, False, False])[0],
        lambda: _BACK(result, x, weight, None, *options, [False, True, False])[1],
    ]
    return [_beside(call) for call in calls for _ in range(2)]


def _beside(call: Callable[[], torch.Tensor]) -> int | None:
    try:
        return beside(call)[1]
    except torch.OutOfMemoryError:
        return None


if __name__ == "__main__":
    write_rows(shapes(), workspaces)
