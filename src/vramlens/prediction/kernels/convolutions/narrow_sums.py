"""The partial sums of a weight's gradient of images with few channels, of kernels of 3 x 3.

Which of cuDNN's kernels makes it hangs on the image's side more than on anything else; kept are the most
usual sums as an H200 had them (weight_gradients.json.xz in benchmarks/prediction).
"""

from __future__ import annotations

from vramlens.prediction.kernels.convolutions.weight_sizes import (
    TILE_BYTES,
    WeightSizes,
    filled_up,
)

_SIDES = (
    ((4, 4), 64, ((16, 68),)),
    ((8, 8), 8, ((40, 128),)),
    ((25, 32), 64, ((56, 245), (96, 500), (224, 110), (384, 115))),
    ((33, 48), 48, ((96, 700), (224, 77))),
)
"""Of 32 bits: channels of the image, the most of the result, and sides from which on there are so many
tiles of 64 x 64 float32 numbers.
"""
_SIDES_OF_HALVES = (
    ((25, 32), 32, ((16, 243), (96, 246))),
    ((25, 32), 64, ((16, 230), (96, 350))),
    ((33, 48), 48, ((16, 120), (48, 368))),
)
_SMALL_KERNEL = 3
_STEM_KERNEL, _STEM_CHANNELS, _STEM_OUTPUTS, _FILLED = 7, 4, 64, {False: 4, True: 8}
"""Of a network's first layer: its kernel, the channels of its image, and the most of its result in 32 bits;
and the channels that the image's are filled up to.
"""
_STEM_SUMS = {
    False: ((4_000, 20), (20_000, 54), (200_000, 120)),
    True: ((4_000, 20), (20_000, 56), (200_000, 61)),
}
"""Results of one channel from which on it has so many partial sums, by whether numbers have 16 bits."""
_LEAST_WIDE, _LEAST_OF_FEWEST, COPIED_OUTPUTS = 8, 15_000, range(33, 65)
"""Channels below which an image is copied for few results, how many are not, and the outputs with which
it is copied in any case.
"""
_FEWEST, _FEW, _NARROW, _LEAST_WITHOUT_COPIES = 8, 24, 64, 75_000
"""Channels of an image that is not copied for more outputs and so many results; of one side and of both
sides of narrow weights.
"""
_LEAST_RESULTS = {False: 50_000, True: 150_000}
"""Of one channel, by whether numbers have 16 bits."""


def bytes_of_narrow_sums(sizes: WeightSizes, *, is_half: bool) -> int | None:
    """Of a gradient's partial sums; None where those of such a weight are not known."""
    if sizes.kernel == _STEM_KERNEL and sizes.inputs <= _STEM_CHANNELS:
        return _bytes_of_stem(sizes, is_half=is_half)
    if sizes.kernel != _SMALL_KERNEL or sizes.stride > 1:
        return None
    if sizes.results < _LEAST_RESULTS[is_half]:
        return None
    if sizes.inputs < _LEAST_WIDE and sizes.outputs not in COPIED_OUTPUTS:
        return None
    for (fewest, most_inputs), most_outputs, sides in _SIDES_OF_HALVES if is_half else _SIDES:
        if fewest <= sizes.inputs <= most_inputs and sizes.outputs <= most_outputs:
            tiles = [count for side, count in sides if sizes.side >= side]
            return TILE_BYTES * tiles[-1] if tiles else None
    return None


def _bytes_of_stem(sizes: WeightSizes, *, is_half: bool) -> int | None:
    if not is_half and sizes.outputs > _STEM_OUTPUTS:
        return None
    sums = [count for results, count in _STEM_SUMS[is_half] if sizes.results >= results]
    filled = filled_up(sizes.inputs, _FILLED[is_half])
    return 4 * filled * sizes.outputs * sizes.places * sums[-1] if sums else 0


def is_narrow(sizes: WeightSizes) -> bool:
    """Whether an image or its result has so few channels that the gradient is made of tensors whose
    channels lie first.
    """
    inputs, outputs = sizes.inputs, sizes.outputs
    if sizes.kernel < _SMALL_KERNEL:
        return False
    if inputs < _LEAST_WIDE:
        return sizes.results < _LEAST_OF_FEWEST or outputs in COPIED_OUTPUTS
    if inputs == _FEWEST and outputs > inputs:
        return sizes.results < _LEAST_WITHOUT_COPIES
    return max(inputs, outputs) < _NARROW and min(inputs, outputs) <= _FEW
