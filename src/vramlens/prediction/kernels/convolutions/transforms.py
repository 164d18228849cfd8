"""The Fourier transforms that cuDNN makes results and gradients of in float32, as a workspace has them.

Which convolutions are transformed was measured on an H200 (sweep.json.xz, batches_volumes.json.xz,
odd_batches.json.xz in benchmarks/prediction, cuDNN 9.19):

- a weight's gradient without stride, of few channels and many small images: a copy of the output's
  gradient, and twice the transforms of each channel's input and output, with each side the next power
  of two (256 images of 32 channels, to the byte; up to 6,144 images, of 64 channels or larger sides
  none; 512 of 32 without padding in ``drq_sac`` are copied);
- an input's gradient of 20 or 28 channels: the same in tiles of 32 x 32, without a copy (to the byte).

A result whose kernel is as large as the image is one of second_gradients.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramlens.prediction.kernels.image_layout import bytes_of

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_COMPLEX_BYTES = 8
_TILE_SIDE = 32
_FEW_CHANNELS, _EIGHT, _SMALL_KERNEL = 32, 8, 3
_LEAST_SUMMED = 56
"""Numbers that one result is a sum of; of fewer no gradient is transformed."""
_MAY_TRANSFORM, _TRANSFORMS = 4, 8
"""Images for each channel from which on a weight's gradient may be made of transforms, and from which
on it is, with 32 channels.
"""
_LARGEST_TRANSFORMED = 32
"""The longest side of an image whose weight's gradient is; of one with more outputs, twice that."""
_MORE_OUTPUTS, _LEAST_POINTS = range(20, 37), 1 << 16
"""Outputs of a weight that need four times as many numbers of a channel as fewer outputs do, and so
many of these.
"""
_MANY_INPUTS, _OUTPUTS_OF_MANY, _USUAL_IMAGES, _FEWER_IMAGES = 68, range(14, 65), 64, 48
_USUAL_CHANNELS, _USUAL_SIDE = range(24, 65), 40
_USUAL_POINTS, _MOST_USUAL_POINTS, _MOST_POINTS_OF_LARGER, _LEAST_POINTS_OF_FEW = (
    14_384,
    35_200,
    49_152,
    12_080,
)
"""Of a weight's gradient of small images: inputs above which few outputs are enough, and these; images of such and of
others; channels of others, and their longest side. The last four are numbers of a channel of all images: the fewest
and the most, those of larger kernels with many inputs, and the fewest of 32 x 32 channels (of 151 such in
weight_gradients.json.xz, padded_layers.json.xz and older files 142 are made of transforms).
"""
_TILED_INPUTS, _LEAST_TILED_POINTS = (20, 28), 150_000
"""Inputs whose gradient is made in tiles, where an image is larger than one, or of more outputs and so
many numbers of a channel: multiples of four that are none of eight; of 12 and 36 it is copied.
"""


@dataclass(frozen=True, slots=True)
class PlainConvolution:
    """A convolution of images in 32 bits whose channels lie first, without stride or groups.

    Attributes:
        tensor, weight, output: the images, the weight, and the result or its gradient.
    """

    tensor: Any
    weight: Any
    output: Any

    @property
    def makes_weight_of_transforms(self) -> bool:
        """Whether the weight's gradient is made of transforms."""
        if not self._images_a_channel:
            return False
        if self._has_usual_transforms:
            return True
        side = max(self.tensor.shape[2:])
        if self._inputs == self._outputs == _FEW_CHANNELS:
            return self._images_a_channel >= _TRANSFORMS and side <= _LARGEST_TRANSFORMED
        if self._outputs < _MORE_OUTPUTS.start:
            is_small = self._inputs <= _FEW_CHANNELS and side <= _LARGEST_TRANSFORMED
            return is_small and self._points >= _LEAST_POINTS
        is_small = self._inputs < _FEW_CHANNELS and side <= 2 * _LARGEST_TRANSFORMED
        return is_small and self._points >= 4 * _LEAST_POINTS and self._outputs in _MORE_OUTPUTS

    @property
    def _has_usual_transforms(self) -> bool:
        """Whether it is of as many numbers as the layers of networks for small images have: of few outputs for their
        inputs, or of few of both. Where cuDNN tries its plans, others are faster (tried_plans.json.xz).
        """
        if torch.backends.cudnn.benchmark:
            return False
        images, side, kernel = int(self.tensor.shape[0]), *self._longest_sides
        channels = self._inputs, self._outputs
        if self._inputs > _MANY_INPUTS:
            is_usual = side <= _LARGEST_TRANSFORMED and self._outputs in _OUTPUTS_OF_MANY
            most_points = _MOST_POINTS_OF_LARGER if kernel > _SMALL_KERNEL else self._points
            return (
                is_usual
                and images >= _USUAL_IMAGES
                and _USUAL_POINTS <= self._points <= most_points
            )
        are_usual = all(count in _USUAL_CHANNELS for count in channels)
        if not are_usual or images < _FEWER_IMAGES or side > _USUAL_SIDE:
            return False
        if self._inputs * self._outputs <= _FEW_CHANNELS**2:
            return max(channels) >= _FEW_CHANNELS and self._points > _LEAST_POINTS_OF_FEW
        return self._inputs >= _FEW_CHANNELS and _USUAL_POINTS <= self._points <= _MOST_USUAL_POINTS

    @property
    def _longest_sides(self) -> tuple[int, int]:
        """Of an image, and of the kernel."""
        return max(map(int, self.tensor.shape[2:])), max(map(int, self.weight.shape[2:]))

    @property
    def may_make_weight_of_transforms(self) -> bool:
        """Whether it may be."""
        return self._images_a_channel >= _MAY_TRANSFORM

    @property
    def makes_input_in_tiles(self) -> bool:
        """Whether the input's gradient is made of transforms in tiles."""
        if not self._is_padded or self._inputs not in _TILED_INPUTS:
            return False
        if self._inputs < self._outputs and self._points >= _LEAST_TILED_POINTS:
            return True
        return self._inputs <= self._outputs and self._reaches_over_one_tile

    @property
    def may_make_input_in_tiles(self) -> bool:
        """Whether it may be: larger kernels, or channels that eight does not divide."""
        is_odd = self._inputs % _EIGHT > 0 or self._outputs % _EIGHT > 0
        return self._is_padded and (is_odd or max(self.weight.shape[2:]) > _SMALL_KERNEL)

    @property
    def bytes_of_weight_transforms(self) -> int:
        """Of two operands' transforms, twice, and a copy of the output's gradient."""
        return bytes_of(self.output) + 2 * self._planes * self._bytes_of_plane

    @property
    def bytes_of_input_tiles(self) -> int:
        """Of the images' transforms, two tiles at a time of larger ones, and of the weight's."""
        tiles_at_once = 2 if self._reaches_over_one_tile else 1
        return bytes_of_tiles(tiles_at_once * self._planes, self._inputs * self._outputs)

    @property
    def _planes(self) -> int:
        """The channels of all images and results."""
        return int(self.tensor.shape[0]) * (self._inputs + self._outputs)

    @property
    def _inputs(self) -> int:
        return int(self.tensor.shape[1])

    @property
    def _outputs(self) -> int:
        return int(self.output.shape[1])

    @property
    def _points(self) -> int:
        """Numbers of one channel of all images."""
        return int(self.tensor.numel() // self._inputs)

    @property
    def _is_padded(self) -> bool:
        return bool(self.output.shape[2:] == self.tensor.shape[2:])

    @property
    def _bytes_of_plane(self) -> int:
        return bytes_of_plane(self.tensor.shape[2:], self.weight.shape[2:])

    @property
    def _reaches_over_one_tile(self) -> bool:
        sides = zip(self.tensor.shape[2:], self.weight.shape[2:], strict=True)
        return any(int(image + kernel) - 1 > _TILE_SIDE for image, kernel in sides)

    @property
    def _images_a_channel(self) -> float:
        """Images for each channel of a convolution whose weight's gradient cuDNN may transform; 0
        of another.
        """
        summed = self._inputs * int(self.weight.shape[2:].numel())
        if not self._is_padded or summed < _LEAST_SUMMED:
            return 0
        return int(self.tensor.shape[0]) / max(self._inputs, self._outputs)


def bytes_of_tiles(image_planes: int, weight_planes: int) -> int:
    """Of so many transforms of images and of a weight, in tiles."""
    return (image_planes + weight_planes) * bytes_of_plane((_TILE_SIDE, _TILE_SIDE), (1, 1))


def bytes_of_plane(image_sides: Iterable[int], kernel_sides: Iterable[int]) -> int:
    """Of the transform of one channel of an image, which is as large as that of its kernel."""
    sides = zip(image_sides, kernel_sides, strict=True)
    rows, columns = (_next_power(int(image + kernel) - 1) for image, kernel in sides)
    return rows * (columns // 2 + 1) * _COMPLEX_BYTES


def _next_power(size: int) -> int:
    """The least power of two that is no less."""
    return 1 << (size - 1).bit_length()
