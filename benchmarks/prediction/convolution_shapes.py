"""Convolutions as networks have them, drawn at random, and what one asks for beside its result.

What ``weight_gradients.py`` and ``convolution_results.py`` share.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
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
MOST_CHANNELS = 2048
MOST_BYTES, MOST_PRODUCTS = 1_500_000_000, 1_500_000_000_000

Draw = Callable[[random.Random, torch.dtype, int, int], tuple[int, ...]]
"""Images, channels and sides, for a type, a kernel and a stride."""


def drawn(
    seed: str, kernels: dict[tuple[int, int], int], share_of_last: float, draw: Draw
) -> Iterator[tuple[Any, ...]]:
    """Type, whether channels lie last, what ``draw`` gives, kernel and stride; as many as ``kernels`` says."""
    for dtype in (torch.float32, torch.bfloat16):
        for is_last in (False, True):
            draws = random.Random(f"{seed}{dtype} {is_last}")
            for (kernel, stride), count in kernels.items():
                for _ in range(int(count * (share_of_last if is_last else 1))):
                    yield dtype, is_last, *draw(draws, dtype, kernel, stride), kernel, stride


def channels_of(draws: random.Random, base: int, kernel: int) -> tuple[int, int]:
    """The channels of an image and of its result; now and then those of a network's first layer."""
    one, other = draws.choice(RATIOS)
    if kernel in (3, 5, 7) and draws.random() < (0.5 if kernel == 7 else 0.06):
        return draws.choice(STEMS), draws.choice(STEM_CHANNELS)
    return base * one, base * other


def is_small(
    dtype: torch.dtype,
    images: int,
    channels: tuple[int, int],
    sides: tuple[int, int],
    kernel: int,
    stride: int,
) -> bool:
    """Whether a convolution fits the card and the time that there is."""
    inputs, outputs = channels
    height, width = sides
    size_bytes = images * height * width * (inputs + outputs) * dtype.itemsize
    products = images * (height // stride) * (width // stride) * inputs * outputs * kernel**2
    return (
        size_bytes < MOST_BYTES
        and products < MOST_PRODUCTS
        and min(sides) >= kernel
        and max(channels) <= MOST_CHANNELS
    )


def beside(run: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, int]:
    """What a call gives, and the bytes that it asks for beside."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    result = run()
    most = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    return result, int(most - before - result.nbytes)


def write_rows(
    shapes: Iterable[tuple[Any, ...]], measure: Callable[[tuple[Any, ...]], Sequence[int]]
) -> None:
    """A file with each shape and its bytes, as the command line names it: FILE.json [PART PARTS]."""
    part, parts = map(int, sys.argv[2:4]) if len(sys.argv) > 2 else (0, 1)
    rows = []
    for number, shape in enumerate(shapes):
        if number % parts == part:
            rows.append([str(shape[0]), *shape[1:], *measure(shape)])
    answer = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "cudnn": torch.backends.cudnn.version(),
        "rows": rows,
    }
    with open(sys.argv[1], "w") as file:
        json.dump(answer, file)
