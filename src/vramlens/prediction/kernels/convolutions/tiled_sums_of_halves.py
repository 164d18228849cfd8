"""The partial sums of a weight's gradient in 16 bits, but of 1 x 1 kernels without a stride.

Such a gradient of few results is one sum. Of more, it is made in parts, whose number grows in steps: at
each of them another of cuDNN's kernels runs. The steps are as an H200 had them, in both layouts alike
(weight_gradients.json.xz in benchmarks/prediction); the most usual weights have them, others are taken to
be one sum where they are large.
"""

from __future__ import annotations

from vramlens.prediction.kernels.convolutions.weight_sizes import (
    TILE_BYTES,
    TILE_SIDE,
    WeightSizes,
)

_STEPS: dict[tuple[int, int, int], tuple[tuple[int, int], ...]] = {
    (3, 1, 1): ((16_000, 117),),
    (3, 1, 2): ((12_800, 36), (18_000, 234)),
    (3, 1, 3): ((8_000, 80), (12_000, 440)),
    (3, 1, 4): ((18_000, 144), (55_000, 216)),
    (3, 2, 1): ((16_000, 234),),
    (3, 2, 2): ((12_000, 72), (18_000, 144), (60_000, 216), (73_000, 468)),
    (3, 2, 4): ((18_000, 144), (30_000, 216), (73_000, 936)),
    (3, 2, 6): ((18_000, 216), (76_000, 864)),
    (3, 2, 8): ((25_000, 432), (76_000, 864)),
    (3, 3, 1): ((9_400, 72), (18_000, 144), (80_000, 180)),
    (3, 3, 2): ((16_300, 288), (50_000, 180)),
    (3, 3, 3): ((16_300, 288), (24_000, 432), (36_000, 448)),
    (3, 4, 1): ((8_000, 72), (12_000, 396), (16_000, 468)),
    (3, 4, 2): ((16_300, 288), (36_000, 432), (49_000, 1040)),
    (3, 4, 4): ((16_300, 288), (24_000, 432), (50_000, 1008)),
    (3, 4, 8): ((6_900, 168), (12_000, 240)),
    (3, 4, 16): ((4_096, 192), (9_400, 384), (16_000, 528)),
    (3, 5, 2): ((9_200, 192), (130_000, 864)),
    (3, 5, 5): ((4_096, 100), (9_200, 192), (16_000, 240)),
    (3, 6, 2): (),
    (4, 1, 1): ((12_000, 36), (36_000, 80), (120_000, 100)),
    (5, 1, 1): ((16_000, 54), (30_000, 108)),
    (5, 3, 3): ((4_700, 160), (9_200, 240)),
}
"""By a kernel's side, and how many times 64 channels an image and a result have: results of one channel
from which on its gradient has so many tiles of 64 x 64 float32 numbers.
"""
_OF_MANY_IMAGES = {
    (3, 6, 6): ((4_700, 192),),
    (3, 8, 8): ((4_700, 192), (8_000, 384), (12_800, 480)),
}
"""The same of weights that have partial sums of many images only."""
_MANY_IMAGES = 96
_PARTLY_FILLED: dict[tuple[int, int, int], tuple[tuple[int, int], ...]] = {
    (3, 1, 2): ((34_000, 220),),
    (3, 4, 4): ((12_000, 96), (16_300, 288), (24_000, 432)),
    (3, 6, 2): ((12_000, 224), (130_000, 864)),
    (1, 2, 2): ((12_000, 110),),
    (5, 2, 2): ((16_000, 432), (30_000, 832), (60_000, 1040)),
}
"""The same of weights with channels that 64 does not divide, where those differ."""
_WITH_STRIDE = {(3, 1, 1): ((12_800, 24), (16_000, 110))}
"""The same of convolutions with a stride."""
_ROUNDED_OUTPUTS = {3: 4, 7: 8}
"""Of weights with 65 to 128 inputs: 192 outputs have the steps of 256."""
_LEAST_PARTLY, _LEAST_FILLED = 32, 64
"""Channels of an image from which on the steps of 64 are known for up to 128 outputs, and for others."""


def bytes_of_tiled_sums_of_halves(sizes: WeightSizes) -> int | None:
    """Of a gradient's partial sums; None where those of such a weight are not known."""
    outputs = sizes.output_tiles
    if sizes.input_tiles == 2:
        outputs = _ROUNDED_OUTPUTS.get(outputs, outputs)
    key = sizes.kernel, sizes.input_tiles, outputs
    if sizes.inputs < _LEAST_FILLED and not (key[1:] == (1, 2) and sizes.inputs >= _LEAST_PARTLY):
        return None if key[1:] != (1, 3) else _bytes_of(sizes, _STEPS.get(key))
    if key[1:] == (2, 1) and sizes.inputs % TILE_SIDE:
        return None
    return _bytes_of(sizes, _steps(sizes, key))


def _bytes_of(sizes: WeightSizes, steps: tuple[tuple[int, int], ...] | None) -> int | None:
    if steps is None:
        return None
    tiles = [count for results, count in steps if sizes.results >= results]
    return TILE_BYTES * (tiles[-1] if tiles else 0)


def _steps(sizes: WeightSizes, key: tuple[int, int, int]) -> tuple[tuple[int, int], ...] | None:
    is_filled = sizes.inputs % TILE_SIDE == 0
    if key in _OF_MANY_IMAGES:
        return _OF_MANY_IMAGES[key] if sizes.images >= _MANY_IMAGES else ()
    if sizes.stride > 1 and key in _WITH_STRIDE:
        return _WITH_STRIDE[key]
    if not is_filled and key in _PARTLY_FILLED:
        return _PARTLY_FILLED[key]
    return _STEPS.get(key)
