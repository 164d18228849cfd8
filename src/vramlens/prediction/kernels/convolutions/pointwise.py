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
from dataclasses import dataclass
from typing import Any

from vramlens.prediction.kernels.convolutions.filled_up_copies import (
    KERNEL_BYTES,
    bytes_of_filled_sides,
    multiple_of,
)
from vramlens.prediction.kernels.image_layout import bytes_of, is_half
from vramlens.units import MIB

_ALIGNED, _LEAST_ALIGNED, _MUCH_MORE = 8, 64, 1.25
_LINE_DIMS, _VOLUME_DIMS = 3, 5
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
_FEW_OF_LINE, _MANY_IMAGES = 208, 56
_FEWER_INPUTS_OF_LINE, _FEWER_OUTPUTS_OF_LINE = 120, 144
"""Channels of signals in 32 bits up to which few are on both sides, signals and images that are many, and
channels of few and of many of these (signal_layers.json.xz).
"""
_MUCH_MORE_OF_LINE, _LEAST_COPIED_OF_LINE, _MANY_OUTPUTS_OF_LINE = 3, 440, 576
_FEWEST_POINTS_OF_LINE, _FEWEST_OUTPUTS_OF_LINE = 624, 72
"""The same in 16 bits: how many times the copies the sums by image are at most, channels, and what nothing is asked
for.
"""
_MUCH_MORE_OF_IMAGES, _FEWEST_POINTS, _SEVERAL_POINTS = 2.62, 1_100, 12_672
_FEW_IMAGES, _FEW_INPUTS, _FEWEST_INPUTS, _FEWEST_PRODUCTS, _COPIED_POINTS = 3, 42, 10, 160, 21_888
"""Of images in 32 bits: how many times the copies the sums by image are at most, numbers of a channel of all images
from which on copies have partial sums beside, and from which on they are made in the place of more sums; images
that are few, inputs that are, and fewest; products of channels that nothing is asked for; and numbers from which
on few are copied (weight_gradients.json.xz).
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
    sums = _Sums(tensor, output, partial_sum, partial_sums)
    if tensor.dim() == _VOLUME_DIMS:
        return sums.of_volumes
    if tensor.dim() == _LINE_DIMS:
        return sums.of_half_lines if is_half(tensor) else sums.of_lines
    if is_half(tensor):
        return sums.of_half_images
    return sums.of_one_image if sums.images == 1 else sums.of_images


@dataclass(frozen=True, slots=True)
class _Sums:
    """The sums that such a gradient is made of: one for each image, or partial sums beside copies of all."""

    tensor: Any
    output: Any
    partial_sum: int
    partial_sums: int

    @property
    def of_volumes(self) -> int:
        """Of volumes."""
        if not _has_odd_results(self.output):
            return self.of_half_images if is_half(self.tensor) else self.of_one_image
        if not _copies_volume(self.tensor, self.output, self.points):
            return self._by_image
        return bytes_of_filled_sides(self.tensor, self.output) + _SUMS_OF_VOLUME

    @property
    def of_half_images(self) -> int:
        """In 16 bits."""
        if self._is_large_of_few_channels:
            return self._by_copies
        is_aligned = self.points % _ALIGNED == 0 and self.points >= _LEAST_ALIGNED
        is_by_image = is_aligned or self.points >= _LEAST_UNALIGNED
        return self._by_image if is_by_image else min(self._by_image, self._copies)

    @property
    def of_one_image(self) -> int:
        """In 32 bits."""
        if self._is_large_of_few_channels:
            return self._by_copies
        is_little = self._by_image <= _MUCH_MORE * self._copies
        return self._by_image if is_little else self._copies

    @property
    def of_images(self) -> int:
        """In 32 bits."""
        if self._by_image > _MUCH_MORE_OF_IMAGES * self._copies:
            return self._copies + (self.partial_sums if self._all_points > _FEWEST_POINTS else 0)
        if self.inputs > _FEW_INPUTS:
            is_copied = self._by_image > self._copies and self._all_points > _SEVERAL_POINTS
            is_copied = is_copied or self._has_few_outputs_of_many_points
        elif self.images <= _FEW_IMAGES:
            is_copied = self.outputs <= _FEW_CHANNELS
        elif self.images > _MANY_IMAGES:
            is_nothing = self.inputs * self.outputs <= _FEWEST_PRODUCTS
            return KERNEL_BYTES if is_nothing else self._by_image
        else:
            is_copied = self._all_points > _COPIED_POINTS and self.inputs > _FEWEST_INPUTS
        return self._by_copies if is_copied else self._by_image

    @property
    def _has_few_outputs_of_many_points(self) -> bool:
        """Whether so few channels come of 64, or fewer of more, that images are copied."""
        if self.images > _MANY_IMAGES or self._all_points < _MANY_POINTS:
            return False
        most = self.inputs if self.inputs == _MORE_CHANNELS else _LEAST_CHANNELS
        return self.inputs >= _MORE_CHANNELS and 1 < self.outputs <= most

    @property
    def of_lines(self) -> int:
        """Of signals in 32 bits: one sum for each, however much that is, but where both sides have few channels."""
        if max(self.inputs, self.outputs) > _FEW_OF_LINE:
            return self._by_image
        if self.images > _MANY_IMAGES:
            is_by_image = self.outputs <= _FEWER_OUTPUTS_OF_LINE
            return self._by_image if is_by_image else self._by_copies
        return self._by_image if self.inputs > _FEWER_INPUTS_OF_LINE else KERNEL_BYTES

    @property
    def of_half_lines(self) -> int:
        """Of signals in 16 bits: copies where one sum for each is much more than these."""
        if self._by_image <= _MUCH_MORE_OF_LINE * self._copies:
            is_small = self.outputs <= _FEWEST_OUTPUTS_OF_LINE
            is_small = is_small and self._all_points <= _FEWEST_POINTS_OF_LINE
            return KERNEL_BYTES if is_small else self._by_image
        is_small = self._all_points <= _FEW_POINTS
        if min(self.inputs, self.outputs) <= _LEAST_COPIED_OF_LINE:
            is_copied = is_small and self.inputs > _LEAST_COPIED_OF_LINE
        else:
            is_copied = is_small or self.outputs > _MANY_OUTPUTS_OF_LINE
        return self._by_copies if is_copied else self._by_image

    @property
    def images(self) -> int:
        """How many there are."""
        return int(self.tensor.shape[0])

    @property
    def inputs(self) -> int:
        """Channels of an image."""
        return int(self.tensor.shape[1])

    @property
    def outputs(self) -> int:
        """Those of a result."""
        return int(self.output.shape[1])

    @property
    def points(self) -> int:
        """Numbers of one channel of an image."""
        return math.prod(self.tensor.shape[2:])

    @property
    def _all_points(self) -> int:
        return self.images * self.points

    @property
    def _copies(self) -> int:
        return bytes_of(self.tensor) + bytes_of(self.output)

    @property
    def _by_image(self) -> int:
        return self.images * self.partial_sum

    @property
    def _by_copies(self) -> int:
        return self._copies + self.partial_sums

    @property
    def _is_large_of_few_channels(self) -> bool:
        """Whether it is of large images of so few channels that these are copied."""
        if self.points < _LARGE_IMAGE:
            return False
        if self.tensor.dim() == _VOLUME_DIMS:
            return self.inputs < _MORE_CHANNELS
        if is_half(self.tensor):
            is_few = 16 <= self.inputs <= _FEW_CHANNELS and 8 <= self.outputs <= _FEW_CHANNELS
            return is_few and self.images < _SEVERAL
        if self.inputs <= _FEW_CHANNELS:
            return self.inputs >= 12 and self.outputs <= _FEW_CHANNELS
        return self._has_few_outputs_of_many_points


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
