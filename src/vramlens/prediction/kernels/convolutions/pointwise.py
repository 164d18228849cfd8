"""What 1 x 1 kernels without a stride ask for, channels first.

The gradient of the weight is a sum over images: one partial sum in float32 for each. Input and
output are copied where that is less, or where large images have few channels, not too few
(few_channels.json.xz in benchmarks/prediction).

Results and gradients of the input ask for nothing, but copies of both (network_layers.json.xz):
results of 16 bits where an image has an odd number of points, and many channels; of 32 bits where
such a one gets fewer of very many, or a large weight meets few points; the gradient of the input
where the weight is large.
"""

from __future__ import annotations

import math
from typing import Any

from vramlens.prediction.kernels.convolutions.filled_up_copies import (
    bytes_of_filled_sides,
    multiple_of,
)
from vramlens.prediction.kernels.image_layout import bytes_of, is_half
from vramlens.units import MIB

_ALIGNED, _LEAST_ALIGNED, _MUCH_MORE = 8, 64, 1.25
_VOLUME_DIMS = 5
_SEVERAL, _LARGE_IMAGE, _MANY_POINTS = 8, 4_000, 40_000
"""Images from which on there are several, numbers of a channel in a large one, and in all."""
_FEW_CHANNELS, _MORE_CHANNELS, _LEAST_CHANNELS = 32, 64, 8
_MANY_CHANNELS, _VERY_MANY_CHANNELS, _LARGE_WEIGHT = 256, 1024, 1 << 20
_LEAST_POINTS, _FEW_POINTS, _MOST_POINTS = 3_000, 6_000, 30_000
"""Of all images: from which on a result of very many channels is copied, and up to which one that a
large weight makes, and its input's gradient, are.
"""
_LEAST_UNALIGNED = 250
"""Numbers of a channel from which on a gradient of 16 bits has one partial sum for each image, though
eight does not divide them: signals of 251 and 401, not of 199, with 512 channels.
"""
_LARGE_VOLUME, _SUMS_OF_VOLUME = 1 << 20, MIB


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
    if tensor.dim() == _VOLUME_DIMS and _has_odd_results(output):
        is_copied = _copies_volume(tensor, output, points)
        return bytes_of_filled_sides(tensor, output) + _SUMS_OF_VOLUME if is_copied else by_image
    if points >= _LARGE_IMAGE and _has_few_channels(tensor, int(output.shape[1]), points):
        return copies + partial_sums
    if is_half(tensor):
        is_aligned = points % _ALIGNED == 0 and points >= _LEAST_ALIGNED
        is_by_image = is_aligned or points >= _LEAST_UNALIGNED
        return by_image if is_by_image else min(by_image, copies)
    return by_image if by_image <= _MUCH_MORE * copies else copies


def _has_odd_results(output: Any) -> bool:
    return int(output.shape[1]) % multiple_of(output) > 0 or int(output.shape[1]) < _ALIGNED


def _copies_volume(tensor: Any, output: Any, points: int) -> bool:
    """Whether a volume with few results, such as a segmentation's classes, is copied."""
    if points < _LARGE_IMAGE:
        return False
    if is_half(tensor) or int(output.shape[1]) > _ALIGNED:
        return True
    return (points >= _LARGE_VOLUME) == (int(tensor.shape[1]) < _MORE_CHANNELS)


def copies_for_result(tensor: Any, output: Any) -> bool:
    """Whether image and result are copied to make the result."""
    inputs, outputs = int(tensor.shape[1]), int(output.shape[1])
    points = int(tensor.numel()) // inputs
    is_odd = math.prod(tensor.shape[2:]) % 2 > 0
    if is_half(tensor):
        return is_odd and max(inputs, outputs) >= _MANY_CHANNELS
    if outputs < inputs:
        return is_odd and inputs >= _VERY_MANY_CHANNELS and points >= _LEAST_POINTS
    return inputs * outputs >= _LARGE_WEIGHT and points <= _FEW_POINTS


def copies_for_input_gradient(tensor: Any, output: Any) -> bool:
    """Whether image and result are copied to make the gradient of the image."""
    inputs, outputs = int(tensor.shape[1]), int(output.shape[1])
    is_large = inputs * outputs >= _LARGE_WEIGHT
    return is_large and int(tensor.numel()) // inputs <= _MOST_POINTS


def _has_few_channels(tensor: Any, outputs: int, points: int) -> bool:
    """Whether a large image has so few that it is copied."""
    images, inputs = map(int, tensor.shape[:2])
    if tensor.dim() == _VOLUME_DIMS:
        return inputs < _MORE_CHANNELS
    if is_half(tensor):
        is_few = 16 <= inputs <= _FEW_CHANNELS and 8 <= outputs <= _FEW_CHANNELS
        return is_few and images < _SEVERAL
    if inputs <= _FEW_CHANNELS:
        return inputs >= 12 and (outputs <= _FEW_CHANNELS or images >= _SEVERAL)
    most = inputs if inputs <= _MORE_CHANNELS else _LEAST_CHANNELS
    return 1 < outputs <= most and images * points >= _MANY_POINTS
