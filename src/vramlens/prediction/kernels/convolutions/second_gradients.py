"""The convolution that a weight's gradient is when it is derived once more, as a gradient penalty does.

Its kernel is as large as the image, and its result as the layer's kernel; the batch is what is summed
(_convolution_double_backward in Convolution.cpp). Its images are the layer's inputs, one for each
channel, and its channels are the layer's images. What it asks for was measured on an H200 (7,169 of
them, second_gradients.json.xz in benchmarks/prediction, cuDNN 9.19):

- copies of all three tensors in cuDNN's layout; of two where the layer's kernel is 1 x 1. Nothing for
  up to six images, unless 64 divides the outputs or inputs are many;
- in float32, Fourier transforms: a copy of the result's gradient, and twice the transforms of both
  operands, or of all pairs of channels where these are more, with each side the power of two from
  the image's with its padding on (each to the byte). 14 to 39 images have them with up to 64
  outputs and few numbers, and with 16 to 24 outputs and more numbers; 40 to 120 images of more than
  32 x 32 with 31 to 63 outputs; up to three of 64 inputs and more with a multiple of 64 outputs.
  Larger kernels (5 x 5) of few numbers have them with more images, too;
- without TF32, transforms for nearly the same ones, of smaller images, too, and otherwise nothing;
- in 16 bits, of images of more than 32 x 32 with 256 outputs and more, a list of where numbers lie.

Right within 5% or a MiB are 7,005. The range has transforms near those limits; without TF32 always, as
cuDNN takes them for some others as well (256 outputs of 42 x 42).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramlens.prediction.kernels.convolutions.filled_up_copies import bytes_of_copies
from vramlens.prediction.kernels.convolutions.transforms import bytes_of_plane
from vramlens.prediction.kernels.image_layout import bytes_of, is_half

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_IMAGE_DIMS = 4
_LARGEST_USUAL_KERNEL, _SMALL_KERNEL = 7, 3
_LARGEST_PADDED = 256
"""The longest side of an image, with its padding, that cuDNN transforms whole."""
_FEW_IMAGES, _MORE_IMAGES, _MOST_IMAGES_OF_LARGE_KERNEL = range(14, 40), range(40, 121), 128
"""Images of the batch that may be transformed."""
_FEW_POINTS, _MOST_FEW_OUTPUTS = 4096, 64
_MORE_POINTS, _OUTPUTS_OF_MORE = 32_768, range(16, 25)
"""Of few images: numbers of all the inputs of one, and the outputs with so many."""
_LEAST_INPUTS = 8
"""Of few images without TF32 that have more numbers, and 64 outputs."""
_MORE_OUTPUTS, _SMALL_SIDE = range(31, 64), 32
_COPIED_POINTS = range(16_384, 32_768)
"""Of more images: outputs, the side up to which none are transformed, and numbers that are not."""
_LEAST_IMAGES_IN_RANGE, _MOST_IMAGES_IN_RANGE, _MOST_OUTPUTS_IN_RANGE = 9, 255, 95
_OUTPUTS_OF_MORE_IN_RANGE, _MORE_OUTPUTS_IN_RANGE = range(13, 31), range(25, 64)
_MORE_IMAGES_IN_RANGE = range(39, 126)
"""Of what may be transformed, as nobody measured in between."""
_VERY_FEW_IMAGES, _MANY_INPUTS = range(1, 4), 64
"""Of batches with many inputs."""
_LEAST_COPIED_IMAGES, _WHOLE_TILE = 7, 64
"""Images from which on all are copied, and outputs whose multiples are, too."""
_MANY_OUTPUTS, _OFFSET_BYTES = 256, 4


@dataclass(frozen=True, slots=True)
class SecondGradient:
    """A convolution whose kernel is as large as its images.

    Attributes:
        tensor, weight, output: the layer's image and its result's gradient, turned so that the batch comes
            second, and the weight's gradient, as large as the layer's kernel.
        has_tf32: whether convolutions in float32 may run in TF32.
    """

    tensor: Any
    weight: Any
    output: Any
    has_tf32: bool

    @classmethod
    def of(cls, tensor: Any, weight: Any, output: Any, *, has_tf32: bool) -> SecondGradient | None:
        """Such a convolution of those tensors; None where it is another, or has a dilation, as that of
        a layer with a stride has.
        """
        is_image = tensor.dim() == _IMAGE_DIMS
        is_turned = min(weight.shape[2:]) > _LARGEST_USUAL_KERNEL >= max(output.shape[2:])
        call = cls(tensor, weight, output, has_tf32)
        sides = zip(tensor.shape[2:], call._padded_sides, strict=True)
        is_dilated = any(side > padded for side, padded in sides)
        return call if is_image and is_turned and not is_dilated else None

    @property
    def bytes_of_result(self) -> int:
        """Of its workspace."""
        if self._makes_transforms:
            return self._bytes_of_transforms
        if self._takes_all_as_they_lie:
            return 0
        if is_half(self.tensor) and self._outputs >= _MANY_OUTPUTS and self._side > _SMALL_SIDE:
            return _OFFSET_BYTES * self._images * int(self.weight.shape[2:].numel())
        copies = bytes_of_copies(self.tensor, self.weight, self.output)
        return copies - (bytes_of(self.output) if self._is_pointwise else 0)

    @property
    def most_of_transforms(self) -> int:
        """Of the transforms that it may be made of; 0 where it is not."""
        is_near = self._makes_transforms or (self._can_transform and self._is_near_transforms)
        return self._bytes_of_transforms if is_near else 0

    @property
    def _makes_transforms(self) -> bool:
        if not self._can_transform:
            return False
        if self._images in _VERY_FEW_IMAGES:
            return self.has_tf32 and self._inputs >= _MANY_INPUTS and self._has_whole_tiles
        if self._images in _FEW_IMAGES:
            return self._has_few_points or self._has_few_outputs_of_more_points
        if self._has_few_points and max(self.output.shape[2:]) > _SMALL_KERNEL:
            return _FEW_IMAGES.start <= self._images <= _MOST_IMAGES_OF_LARGE_KERNEL
        if self._images not in _MORE_IMAGES or self._outputs not in _MORE_OUTPUTS:
            return False
        if not self.has_tf32:
            return self._points >= _FEW_POINTS
        return self._side > _SMALL_SIDE and self._points not in _COPIED_POINTS

    @property
    def _has_few_points(self) -> bool:
        return self._points < _FEW_POINTS and self._outputs <= _MOST_FEW_OUTPUTS

    @property
    def _has_few_outputs_of_more_points(self) -> bool:
        if not self.has_tf32 and self._outputs == _MOST_FEW_OUTPUTS:
            return self._points >= _MORE_POINTS and self._inputs >= _LEAST_INPUTS
        return self._points < _MORE_POINTS and self._outputs in _OUTPUTS_OF_MORE

    @property
    def _is_near_transforms(self) -> bool:
        if self._images in _VERY_FEW_IMAGES:
            return self._inputs >= _MANY_INPUTS
        if not _LEAST_IMAGES_IN_RANGE <= self._images <= _MOST_IMAGES_IN_RANGE:
            return not self.has_tf32 and self._images > _MOST_IMAGES_IN_RANGE
        if not self.has_tf32:
            return True
        if self._points < 2 * _FEW_POINTS and self._outputs <= _MOST_OUTPUTS_IN_RANGE:
            return True
        is_few = self._images <= _FEW_IMAGES.stop and self._points < 2 * _MORE_POINTS
        if is_few and self._outputs in _OUTPUTS_OF_MORE_IN_RANGE:
            return True
        return self._images in _MORE_IMAGES_IN_RANGE and self._outputs in _MORE_OUTPUTS_IN_RANGE

    @property
    def _takes_all_as_they_lie(self) -> bool:
        """Whether nothing is asked for."""
        if self.tensor.dtype is not torch.float32:
            return False
        if not self.has_tf32:
            return True
        if self._images in _VERY_FEW_IMAGES and self._inputs < _MANY_INPUTS:
            return True
        is_tiled = self._has_whole_tiles or self._inputs > _MANY_INPUTS
        return self._images < _LEAST_COPIED_IMAGES and not is_tiled

    @property
    def _has_whole_tiles(self) -> bool:
        return self._outputs % _WHOLE_TILE == 0

    @property
    def _can_transform(self) -> bool:
        is_wide = self.tensor.dtype is torch.float32
        return is_wide and max(self._padded_sides) <= _LARGEST_PADDED

    @property
    def _bytes_of_transforms(self) -> int:
        """Of a copy of the result's gradient, and twice the transforms of both operands or of all pairs
        of channels.
        """
        pairs = self._inputs * self._outputs
        planes = max(self._images * (self._inputs + self._outputs), pairs)
        return bytes_of(self.weight) + 2 * planes * bytes_of_plane(self._padded_sides, (1, 1))

    @property
    def _padded_sides(self) -> tuple[int, ...]:
        """Of an image with its padding."""
        sides = zip(self.weight.shape[2:], self.output.shape[2:], strict=True)
        return tuple(int(kernel + result) - 1 for kernel, result in sides)

    @property
    def _inputs(self) -> int:
        """Channels of the layer's input."""
        return int(self.tensor.shape[0])

    @property
    def _images(self) -> int:
        """Of the batch."""
        return int(self.tensor.shape[1])

    @property
    def _outputs(self) -> int:
        return int(self.output.shape[1])

    @property
    def _side(self) -> int:
        return int(max(self.tensor.shape[2:]))

    @property
    def _points(self) -> int:
        """Numbers of one image of the batch."""
        return int(self.tensor.numel()) // self._images

    @property
    def _is_pointwise(self) -> bool:
        """Whether the layer's kernel is 1 x 1."""
        return all(side == 1 for side in self.output.shape[2:])
