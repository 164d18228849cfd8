"""What the gradient of a 1 x 1 weight without stride asks for.

It is a sum over images: one partial sum in float32 for each. Input and output are copied where that
is less, or where large images have few channels, not too few (few_channels.json.xz in
benchmarks/prediction).
"""

from __future__ import annotations

import math
from typing import Any

from vramlens.prediction.kernels.image_layout import bytes_of

_ALIGNED, _LEAST_ALIGNED, _MUCH_MORE = 8, 64, 1.25
_HALF_BYTES, _VOLUME_DIMS = 2, 5
_SEVERAL, _LARGE_IMAGE, _MANY_POINTS = 8, 4_000, 40_000
"""Images from which on there are several, numbers of a channel in a large one, and in all."""
_FEW_CHANNELS, _MORE_CHANNELS, _LEAST_CHANNELS = 32, 64, 8


def bytes_of_pointwise_gradient(
    tensor: Any, output: Any, partial_sum: int, partial_sums: int
) -> int:
    """Of the workspace of such a gradient.

    Args:
        tensor, output: what the weight was applied to, and what came of it.
        partial_sum, partial_sums: the bytes of one, and of as many as another weight has.
    """
    copies = bytes_of(tensor) + bytes_of(output)
    by_image = int(tensor.shape[0]) * partial_sum
    points = math.prod(tensor.shape[2:])
    is_half = tensor.element_size() == _HALF_BYTES
    if points >= _LARGE_IMAGE and _has_few_channels(tensor, int(output.shape[1]), points):
        return copies + partial_sums
    if is_half:
        is_aligned = points % _ALIGNED == 0 and points >= _LEAST_ALIGNED
        return by_image if is_aligned else min(by_image, copies)
    return by_image if by_image <= _MUCH_MORE * copies else copies


def _has_few_channels(tensor: Any, outputs: int, points: int) -> bool:
    """Whether a large image has so few that it is copied."""
    images, inputs = map(int, tensor.shape[:2])
    if tensor.dim() == _VOLUME_DIMS:
        return inputs < _MORE_CHANNELS
    if tensor.element_size() == _HALF_BYTES:
        is_few = 16 <= inputs <= _FEW_CHANNELS and 8 <= outputs <= _FEW_CHANNELS
        return is_few and images < _SEVERAL
    if inputs <= _FEW_CHANNELS:
        return inputs >= 12 and (outputs <= _FEW_CHANNELS or images >= _SEVERAL)
    most = inputs if inputs <= _MORE_CHANNELS else _LEAST_CHANNELS
    return 1 < outputs <= most and images * points >= _MANY_POINTS
