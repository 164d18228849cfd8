"""The Fourier transforms among the plans that cuDNN tries for a convolution in 32 bits
(``torch.backends.cudnn.benchmark``): what their workspace asks for, although another plan may be taken.

Measured on an H200 (12,066 convolutions in 16 and 32 bits, tried_plans.json.xz in benchmarks/prediction, cuDNN
9.19). Each side is the next power of two from the image's with its padding on, 16 at least, the longer one's for
both; of up to 256. Most of those that have such a plan fit to the byte:

- a result without stride: twice the transforms of images and weight, or of results where these are more, and a copy
  of the weight;
- a weight's gradient without stride: twice those of images and results, or of all pairs of channels where these are
  more, and a copy of the results;
- an input's gradient: those of images, results and weight in tiles of 32 x 32, two at a time of larger images; with
  a stride of two of four quarters of the image and of the kernel, with copies;
- copies of what has channels last.

Of 11,316 that may have such a plan 86% ask for its bytes within 5%, and 10% for less: a third of the results of
1 x 1 kernels have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramlens.prediction.kernels.convolutions.transforms import (
    PlainConvolution,
    bytes_of_plane,
    bytes_of_tiles,
)
from vramlens.prediction.kernels.image_layout import bytes_of

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_IMAGE_DIMS = 4
_LEAST_SIDE, _LARGEST_SIDE, _TILE_SIDE = 16, 256, 32
_QUARTERS = 4
"""Of an image that a stride of two takes apart."""
_NOT_APART, _FEW_POINTS = range(193, 257), 5_000
"""Inputs of even kernels that no quarters are made for, from so many numbers of one channel of all images on."""


@dataclass(frozen=True, slots=True)
class TriedTransforms:
    """A convolution of images in 32 bits that cuDNN may make of transforms.

    Attributes:
        tensor, weight, output: the images, the weight, and the result or its gradient.
        stride: the largest.
        has_channels_last: whether cuDNN is given tensors whose channels lie last.
    """

    tensor: Any
    weight: Any
    output: Any
    stride: int
    has_channels_last: bool

    @classmethod
    def of(
        cls, tensors: tuple[Any, Any, Any], stride: int, groups: int, *, has_channels_last: bool
    ) -> TriedTransforms | None:
        """The convolution; None where no plan is of transforms."""
        tensor, _, output = tensors
        is_wide = tensor.dtype is torch.float32 and tensor.dim() == _IMAGE_DIMS
        # Nobody measured those without padding; ``dcgan`` shows none of such images.
        is_padded = stride > 1 or tensor.shape[2:] == output.shape[2:]
        if not is_wide or not is_padded or groups > 1 or stride > 2:
            return None
        return cls(*tensors, stride, has_channels_last)

    @property
    def of_result(self) -> int:
        """Bytes of the plan for the result; 0 without one."""
        planes = max(self._image_planes + self._weight_planes, self._result_planes)
        return self._whole(planes, bytes_of(self.weight))

    @property
    def of_weight_gradient(self) -> int:
        """Bytes of the plan for the weight's gradient; 0 without one."""
        planes = max(self._image_planes + self._result_planes, self._weight_planes)
        return self._whole(planes, bytes_of(self.output))

    @property
    def of_input_gradient(self) -> int:
        """Bytes of the plan for the input's gradient; 0 without one."""
        if self._kernel == 1:
            return 0
        if self.stride > 1:
            return self._of_quarters
        plain = PlainConvolution(self.tensor, self.weight, self.output)
        return plain.bytes_of_input_tiles + self._copied_bytes

    @property
    def _of_quarters(self) -> int:
        """Of the input's gradient with a stride of two; 0 where there is no such plan."""
        points = self.tensor.numel() // self.tensor.shape[1]
        is_even = self._kernel % 2 == 0
        if is_even and self.tensor.shape[1] in _NOT_APART and points > _FEW_POINTS:
            return 0
        tiles = 1 if max(self.output.shape[2:]) < _TILE_SIDE else 2
        planes = tiles * (_QUARTERS * self._image_planes + self._result_planes)
        quarter = ((self._kernel + 1) // 2) ** 2 * int(self.weight.itemsize)
        copies = bytes_of(self.tensor) + bytes_of(self.output)
        copies += bytes_of(self.weight) if self.has_channels_last else 0
        of_tiles = bytes_of_tiles(planes, _QUARTERS * self._weight_planes)
        return of_tiles + _QUARTERS * quarter * self._weight_planes + copies

    def _whole(self, planes: int, copy_bytes: int) -> int:
        """Of so many transforms of whole images, twice; 0 where there is a stride or these are too large."""
        side = int(max(self.tensor.shape[2:]))
        if self.stride > 1 or side + self._kernel - 1 > _LARGEST_SIDE:
            return 0
        side = max(side, _LEAST_SIDE + 1 - self._kernel)
        plane_bytes = bytes_of_plane([side] * 2, [self._kernel] * 2)
        return 2 * planes * plane_bytes + copy_bytes + self._copied_bytes

    @property
    def _copied_bytes(self) -> int:
        """Of copies of what has channels last; a weight of 1 x 1 lies the same in both layouts."""
        if not self.has_channels_last:
            return 0
        of_weight = bytes_of(self.weight) if self._kernel > 1 else 0
        return bytes_of(self.tensor) + bytes_of(self.output) + of_weight

    @property
    def _kernel(self) -> int:
        """Its longest side."""
        return int(max(self.weight.shape[2:]))

    @property
    def _image_planes(self) -> int:
        """The channels of all images."""
        return int(self.tensor.shape[0] * self.tensor.shape[1])

    @property
    def _result_planes(self) -> int:
        """Those of all results."""
        return int(self.output.shape[0] * self.output.shape[1])

    @property
    def _weight_planes(self) -> int:
        """All pairs of channels."""
        return int(self.weight.shape[0] * self.weight.shape[1])
