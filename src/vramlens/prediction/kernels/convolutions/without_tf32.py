"""What convolutions of images in float32 ask for where TF32 is not allowed.

Nothing is copied. Of 1,804 on an H200 (without_tf32.json.xz in benchmarks/prediction, cuDNN 9.19)
most ask for nothing; the others ask for transforms, to the byte:

- results and the input's gradient: Fourier transforms of what is summed. Of results these are of
  whole images, and few have them: odd sides, most of all. Of the input's gradient they are tiles of
  32 x 32, two for each image;
- the weight's gradient: Winograd's transforms, of tiles of 6 x 6 for kernels of 3 x 3, and of
  13 x 13 for 5 x 5; copies with a stride, of small images, and of most volumes of 16 channels and
  more.

So it is for 1,739 results, 1,721 gradients of inputs, and 1,523 of weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramlens.prediction.kernels.convolutions.transforms import bytes_of_plane, bytes_of_tiles

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_IMAGE_SIDES = 2
_NUMBER_BYTES = 4
_TILES_OF_IMAGE = 2
_SEVERAL_CHANNELS, _MANY_CHANNELS = 33, 144
_LEAST_TILED, _LEAST_OF_TILED = 30, 2_000_000
"""The shortest side of an image that is tiled, and numbers of so many channels as the side with
fewer has.
"""
_LARGEST_TRANSFORMED = 64
"""The longest side of an image whose results may be made of Fourier transforms."""
_WINOGRAD_OUTPUTS = {3: 4, 5: 9}
_WINOGRAD_SIDES = {3: 6, 5: 13}
_IMAGES_TOGETHER = {3: 1, 5: 16}
"""By kernel: the side of what one tile gives, the tile's own, and how many images are one group."""
_LEAST_RESULTS, _FEW_RESULTS, _FEW_IMAGES = 600, 12_000, 16
_CHANNELS_OF_VOLUMES, _RESULTS_OF_VOLUMES = 16, 60_000
_CHANNELS_OF_POINTS, _NUMBERS_OF_POINTS = 64, 5_000_000
"""Of volumes that are copied for their weight's gradient: the fewest channels, and results of one channel
without a stride; of 1 x 1 x 1 kernels the fewest channels, and numbers of results.
"""


def allows_tf32() -> bool:
    """Whether the program lets convolutions run in TF32, as PyTorch does by itself."""
    convolutions: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    return bool(convolutions.fp32_precision == "tf32")


@dataclass(frozen=True, slots=True)
class Float32Convolution:
    """A convolution in float32 whose tensors lie as they are.

    Attributes:
        inputs, outputs: channels.
        sides, result_sides: of an image and of its result.
    """

    images: int
    inputs: int
    outputs: int
    sides: tuple[int, ...]
    result_sides: tuple[int, ...]
    kernel: int
    stride: int

    @classmethod
    def of(cls, tensor: Any, weight: Any, output: Any, stride: int) -> Float32Convolution:
        """What a convolution's tensors say."""
        images, inputs = map(int, tensor.shape[:2])
        outputs, kernel = int(output.shape[1]), max(map(int, weight.shape[2:]))
        sides, result_sides = map(tuple, (tensor.shape[2:], output.shape[2:]))
        return cls(images, inputs, outputs, sides, result_sides, kernel, stride)

    @property
    def most_of_result(self) -> int:
        """Of the largest workspace of a result: Fourier transforms, and a turned weight."""
        if not self._may_transform or max(self.sides) > _LARGEST_TRANSFORMED:
            return 0
        plane = bytes_of_plane(self.sides, (self.kernel, self.kernel))
        planes = 2 * self.inputs * (self.outputs + self.images)
        weight = self.inputs * self.outputs * self.kernel**2 * _NUMBER_BYTES
        return planes * plane + weight

    @property
    def bytes_of_input_gradient(self) -> int:
        """Of the workspace of the gradient of the input."""
        numbers = self.images * math.prod(self.sides) * self._least_channels
        is_tiled = min(self.sides) >= _LEAST_TILED and numbers >= _LEAST_OF_TILED
        if not self._may_transform or not is_tiled:
            return 0
        images = _TILES_OF_IMAGE * self.images * (self.inputs + self.outputs)
        return bytes_of_tiles(images, self.inputs * self.outputs)

    @property
    def bytes_of_weight_gradient(self) -> int:
        """Of the workspace of the gradient of the weight, where it is not of copies."""
        if not self._may_transform or self._results < _LEAST_RESULTS:
            return 0
        side, together = _WINOGRAD_SIDES[self.kernel], _IMAGES_TOGETHER[self.kernel]
        tiles = math.prod(-(-size // _WINOGRAD_OUTPUTS[self.kernel]) for size in self.sides)
        tiles *= -(-self.images // together) * together
        numbers = tiles * (self.inputs + self.outputs) + self.inputs * self.outputs
        return numbers * side**2 * _NUMBER_BYTES

    @property
    def copies_for_weight_gradient(self) -> bool:
        """Whether the gradient of the weight is made of copies of all three tensors."""
        if len(self.sides) > _IMAGE_SIDES:
            return self._copies_volumes
        if self.kernel == 1 or self._least_channels < _SEVERAL_CHANNELS:
            return False
        is_large = self._least_channels >= _MANY_CHANNELS and self.images <= _FEW_IMAGES
        return self.stride > 1 and (self._results <= _FEW_RESULTS or is_large)

    @property
    def _copies_volumes(self) -> bool:
        if self.kernel == 1:
            numbers = self._results * self._least_channels
            return self._least_channels >= _CHANNELS_OF_POINTS and numbers >= _NUMBERS_OF_POINTS
        if self._least_channels >= _SEVERAL_CHANNELS:
            return True
        is_large = self.stride > 1 or self._results >= _RESULTS_OF_VOLUMES
        return self._least_channels >= _CHANNELS_OF_VOLUMES and is_large

    @property
    def _may_transform(self) -> bool:
        is_plain = len(self.sides) == _IMAGE_SIDES and self.stride == 1
        is_wide = self._least_channels >= _SEVERAL_CHANNELS
        return is_plain and is_wide and self.kernel in _WINOGRAD_SIDES

    @property
    def _least_channels(self) -> int:
        return min(self.inputs, self.outputs)

    @property
    def _results(self) -> int:
        """Numbers of one channel of all results."""
        return self.images * math.prod(self.result_sides)
