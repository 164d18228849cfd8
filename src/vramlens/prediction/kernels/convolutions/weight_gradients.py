"""What the gradient of a convolution's weight asks for: copies of the tensors, and its partial sums.

Where partial sums of such a weight were not measured, there are 14 beside the copies, or 8 MiB of them;
large weights of 16 bits have none, and with few results (8,000 of a channel) none has. In 32 bits those are
made of Winograd's transforms, but with many channels. 1 x 1 kernels with a stride copy no weight. The
gradient of results with fewer than four channels (the heads of ``crowd_detector``) has 32 partial sums, one
of a depthwise weight in 16 bits with channels last eight for each image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramlens.prediction.kernels.convolutions.filled_up_copies import (
    KERNEL_BYTES,
    bytes_of_few_in_groups,
    bytes_of_filled_sides,
)
from vramlens.prediction.kernels.convolutions.narrow_sums import (
    COPIED_OUTPUTS,
    bytes_of_narrow_sums,
    is_narrow,
)
from vramlens.prediction.kernels.convolutions.pointwise import bytes_of_pointwise_gradient
from vramlens.prediction.kernels.convolutions.pointwise_sums import (
    bytes_of_sums_of_halves,
    bytes_of_sums_with_channels_last,
)
from vramlens.prediction.kernels.convolutions.tiled_sums import (
    bytes_of_tiled_sums,
    takes_channels_first,
)
from vramlens.prediction.kernels.convolutions.tiled_sums_of_halves import (
    bytes_of_tiled_sums_of_halves,
)
from vramlens.prediction.kernels.convolutions.weight_sizes import WeightSizes
from vramlens.prediction.kernels.convolutions.without_tf32 import Float32Convolution, allows_tf32
from vramlens.prediction.kernels.image_layout import bytes_of
from vramlens.units import MIB

if TYPE_CHECKING:
    import torch

    from vramlens.prediction.kernels.convolutions.convolution import Convolution
else:
    from vramlens.ground.late_torch import torch

_FEW_FOR_WEIGHT = {True: 25, False: 56}
"""Numbers that a result is a sum of, by whether they have 16 bits: of fewer nothing is asked for."""
_FEW_FOR_FEW_OUTPUTS, _FEW_OUTPUTS = 128, 32
"""The same of a weight in 32 bits with few outputs (odd_batches.json.xz)."""
_MANY_POINTS = 40_000
_MOST_OF_THIN, _FEW_OF_THIN = 64, 128
"""Outputs up to which the gradient for an image of one or two channels sums few numbers of many points,
and those numbers.
"""
_FEW_RESULTS, _VERY_FEW_RESULTS = 8_000, 1_000
"""Of a channel, below which a weight's gradient of 16 bits is one sum, and one of 32 bits is made of
Winograd's transforms, or as the tensors lie.
"""
_RESULTS_OF_FEW_SUMMED = 3_000
"""Of a channel, up to which a weight's gradient of 16 bits that sums few numbers needs no copies."""
_USUAL_PARTIAL_SUMS, _MOST_USUAL_BYTES, _LARGE_WEIGHT = 14, 8 * MIB, 3 * MIB // 2
_LEAST_WIDE_CHANNELS, _LARGE_KERNEL, _SMALL_KERNEL = 4, 4, 3
_SUMS_OF_FEW_RESULTS = 32
"""Partial sums of a weight's gradient in 32 bits whose results have fewer than four channels."""
_SUMS_OF_IMAGE = 8
"""Partial sums for each image of a depthwise weight's gradient, with channels last."""
_IMAGE_DIMS, _LEAST_SUMMED = 4, 8
BEYOND_OF_GRADIENT = 20 * MIB
"""Bytes that a gradient asks for beside copies at most, without large partial sums."""
_MOST_SUMS, _MOST_BYTES_OF_SUMS, _MOST_TRANSFORMED_RESULTS = 16, 64 * MIB, 16_000
"""Partial sums as large as the weight that it has beside, how many and of how many bytes at most; and the
results that may be made of Winograd's transforms.
"""
_LEAST_TILED = 64
"""Channels of an image from which on partial sums are tiles."""
_MANY_CHANNELS, _SEVERAL_CHANNELS, _MOST_TRANSFORMED = 256, 128, 320
_FEWEST_TILED, _RESULTS_OF_MANY_CHANNELS, _SMALL_SIDE = 150, 1_800, 8
"""Channels from which on a gradient of few results in 32 bits is made in tiles, or is of images of so
short a side; of fewer it is made of Winograd's transforms. Above the third number of channels these are
not taken in any case; the next are the results that tiles are made of then, and with fewer channels.
"""
_LEAST_COPIED, _FEWEST_WITH_STRIDE, _FEWEST_OF_POINTS = 32, 150, 400
_LEAST_SUMMED_OF_POINTS, _SUMS_OF_POINTS = 4_000, 7
"""With a stride: channels and results below which nothing is copied, of 1 x 1 kernels results; and from how
many of these such have partial sums.
"""
_TRANSFORMED_CHANNELS, _MOST_IMAGES, _LEAST_WIDE_SIDE = (320, 384), 12, 40
"""Of a latent diffusion model's images in 32 bits, whose gradient is made of Winograd's transforms: how
many at most, and of what side.
"""
_EIGHT_CHANNELS, _LEAST_OF_FEWEST = 8, 50_000
_FOUR_CHANNELS, _RESULTS_COPIED_TWICE = 4, 25_000
"""Of an image in 16 bits whose result is copied twice, and results from which on it is
(batches_volumes.json.xz, too).
"""
_MANY_OF_FEWEST = 15_000
"""Results from which on an image in 32 bits of one to three channels that lie last needs nothing."""
_FEW_OF_HALF, _VERY_FEW_OF_HALF = 32, 16
"""Channels below which a gradient of few results in 16 bits needs no copies, with kernels up to 3 x 3 and
larger ones.
"""


@dataclass(frozen=True, slots=True)
class WeightGradient:
    """The gradient of a convolution's weight."""

    call: Convolution

    @property
    def bytes_of_workspace(self) -> int:
        """Of what it asks for."""
        call = self.call
        if call.is_grouped_point:
            return call.bytes_of_all_copies
        if (without_tf32 := call.without_tf32) is not None:
            is_copied = without_tf32.copies_for_weight_gradient
            transforms = without_tf32.bytes_of_weight_gradient
            return call.own_bytes if is_copied else transforms or KERNEL_BYTES
        if call.has_channels_last:
            return self._bytes_with_channels_last
        if call.is_pointwise:
            is_of_tiles = call.is_line or (not call.is_half and self._is_single_image)
            is_of_tiles = is_of_tiles and self._sizes.least_channels >= _LEAST_TILED
            sums = self._sums_of_points if is_of_tiles else self._usual_sums
            return bytes_of_pointwise_gradient(call.tensor, call.output, self._partial_sum, sums)
        if self._sums_few:
            return self._bytes_of_few_summed
        if not call.is_half and int(call.output.shape[1]) < _LEAST_WIDE_CHANNELS:
            return _SUMS_OF_FEW_RESULTS * self._partial_sum
        plain = call.plain
        if plain is not None and plain.makes_weight_of_transforms:
            return plain.bytes_of_weight_transforms
        return self._bytes_of_copied

    def most_of_workspace(self, most_of_copies: int) -> int:
        """Of what it asks for at most.

        Args:
            most_of_copies: bytes of its tensors' copies.
        """
        call = self.call
        copies = most_of_copies
        if call.is_half and call.has_channels_last and self._is_single_image:
            odd = call.bytes_of_odd_copies
            copies = odd if odd > KERNEL_BYTES else 0
        sums = min(_MOST_SUMS * self._partial_sum, _MOST_BYTES_OF_SUMS)
        summed = copies + BEYOND_OF_GRADIENT + sums
        transformed = max(call.most_of_weight_transforms, self._most_of_winograd)
        return max(summed, transformed, self.bytes_of_workspace)

    @property
    def _most_of_winograd(self) -> int:
        """Of Winograd's transforms of few results in 32 bits; 0 where there are none."""
        call = self.call
        is_plain = call.plain is not None and call.result_points < _MOST_TRANSFORMED_RESULTS
        if not is_plain:
            return 0
        transformed = Float32Convolution.of(call.tensor, call.weight, call.output, call.stride)
        return transformed.bytes_of_weight_gradient

    @property
    def _bytes_of_copied(self) -> int:
        """Where channels lie first and all tensors are copied, if they are not few."""
        call = self.call
        is_single = call.groups == 1  # transforms go through all channels
        is_few = is_single and call.result_points < _FEW_RESULTS
        if is_single and self._is_of_few_wide_images:
            return self._bytes_of_few_results
        if call.tensor.dtype is torch.float32 and is_few and not self._is_tiled_of_few_results:
            return self._bytes_of_few_results
        if call.is_half and self._is_single_image and self._has_few_of_half:
            return KERNEL_BYTES
        copies = call.copies(fills_inputs=not call.is_thin_volume_of(torch.float16))
        if call.is_point and self._is_single_image:  # with a stride
            copies -= bytes_of(call.weight)
        return copies + self._sums + self._bytes_of_second_copy

    @property
    def _bytes_of_second_copy(self) -> int:
        """Of a second copy of the result of an image of four channels in 16 bits, with a stride."""
        if not (self.call.is_half and self._is_single_image and self.call.stride > 1):
            return 0
        sizes = self._sizes
        is_copied = sizes.inputs == _FOUR_CHANNELS and sizes.outputs < _LEAST_TILED
        is_copied = is_copied and sizes.kernel == _SMALL_KERNEL
        is_many = sizes.results >= _RESULTS_COPIED_TWICE
        return bytes_of(self.call.output) if is_copied and is_many else 0

    @property
    def _is_of_few_wide_images(self) -> bool:
        """Whether few images with 320 or 384 channels are transformed, of many results, too."""
        if self.call.tensor.dtype is not torch.float32 or self.call.tensor.dim() != _IMAGE_DIMS:
            return False
        sizes = self._sizes
        is_wide = sizes.inputs == sizes.outputs and sizes.inputs in _TRANSFORMED_CHANNELS
        is_few = sizes.images <= _MOST_IMAGES and sizes.side >= _LEAST_WIDE_SIDE
        return is_wide and is_few and sizes.kernel == _SMALL_KERNEL and self.call.stride == 1

    @property
    def _has_few_of_half(self) -> bool:
        sizes = self._sizes
        least_channels = _FEW_OF_HALF if sizes.kernel <= _SMALL_KERNEL else _VERY_FEW_OF_HALF
        return sizes.least_channels < least_channels and sizes.results <= _RESULTS_OF_FEW_SUMMED

    @property
    def _sums(self) -> int:
        """Bytes of the partial sums."""
        measured = self._measured_sums
        return self._usual_sums if measured is None else measured

    @property
    def _measured_sums(self) -> int | None:
        """The same where they were measured."""
        sizes = self._sizes
        if not self._is_single_image or not (self.call.is_half or allows_tf32()):
            return None
        narrow = bytes_of_narrow_sums(sizes, is_half=self.call.is_half)
        if narrow is not None:
            return narrow
        if self.call.is_half:
            return bytes_of_tiled_sums_of_halves(sizes)
        if self.call.has_channels_last:
            is_few = sizes.inputs < _LEAST_SUMMED or is_narrow(sizes)
            return 0 if is_few else bytes_of_tiled_sums(sizes)
        return bytes_of_tiled_sums(sizes) if sizes.inputs >= _LEAST_TILED else None

    @property
    def _bytes_with_channels_last(self) -> int:
        call = self.call
        if call.is_pointwise and self._is_single_image and allows_tf32():
            bytes_of_sums = (
                bytes_of_sums_of_halves if call.is_half else bytes_of_sums_with_channels_last
            )
            return bytes_of_sums(call.tensor, call.weight, call.output)
        if call.is_half and call.is_depthwise:
            return _SUMS_OF_IMAGE * int(call.tensor.shape[0]) * self._partial_sum
        odd = call.bytes_of_odd_copies
        is_large = min(call.weight.shape[2:]) >= _LARGE_KERNEL
        if call.has_few_wide_channels:
            return self._bytes_of_fewest_channels(is_large=is_large)
        measured = self._measured_sums
        if measured is not None:
            copies = self._bytes_of_sides or (odd if odd > KERNEL_BYTES else 0)
            return measured + copies
        if call.is_half:
            return odd + self._usual_sums if odd > KERNEL_BYTES else odd
        return self._usual_sums + odd

    def _bytes_of_fewest_channels(self, *, is_large: bool) -> int:
        """Where channels lie last and an image in 32 bits has one to three."""
        if is_large:
            is_stem = self._is_single_image
            sums = bytes_of_narrow_sums(self._sizes, is_half=False) if is_stem else 0
            return self.call.bytes_of_all_copies + (sums or 0)
        return KERNEL_BYTES if self.call.result_points >= _MANY_OF_FEWEST else self._usual_sums

    @property
    def _bytes_of_sides(self) -> int:
        """Of copies of images and results with channels last, where the kernel takes others; else 0."""
        sizes = self._sizes
        if self.call.is_half or not (takes_channels_first(sizes) or is_narrow(sizes)):
            return 0
        return bytes_of_filled_sides(self.call.tensor, self.call.output)

    @property
    def _is_tiled_of_few_results(self) -> bool:
        """Whether a gradient of few results in 32 bits is made as one of many is."""
        if not self._is_single_image or self.call.stride > 1:
            return False
        sizes = self._sizes
        if sizes.least_channels >= _MANY_CHANNELS:
            is_many = max(sizes.inputs, sizes.outputs) > _MOST_TRANSFORMED
            return sizes.results >= (_FEWEST_TILED if is_many else _RESULTS_OF_MANY_CHANNELS)
        if sizes.kernel == _SMALL_KERNEL and sizes.side > _SMALL_SIDE:
            return False
        return sizes.least_channels >= _SEVERAL_CHANNELS and sizes.results >= _FEWEST_TILED

    @property
    def _bytes_of_few_results(self) -> int:
        call = self.call
        if self._is_single_image and call.stride > 1:
            return self._bytes_of_few_with_stride
        transformed = Float32Convolution.of(call.tensor, call.weight, call.output, call.stride)
        if transformed.kernel == _SMALL_KERNEL and transformed.bytes_of_weight_gradient:
            return transformed.bytes_of_weight_gradient
        is_image = call.tensor.dim() <= _IMAGE_DIMS
        if is_image and call.result_points < _VERY_FEW_RESULTS:
            return KERNEL_BYTES
        return call.bytes_of_all_copies + self._usual_sums

    @property
    def _bytes_of_few_with_stride(self) -> int:
        call, sizes = self.call, self._sizes
        is_widened = sizes.outputs > sizes.inputs >= _LEAST_TILED
        least_copied = _MANY_CHANNELS if call.is_point and not is_widened else _LEAST_COPIED
        fewest = _FEWEST_OF_POINTS if call.is_point else _FEWEST_WITH_STRIDE
        is_few = sizes.least_channels < least_copied
        if not call.is_point:
            is_few = is_few and sizes.results <= _RESULTS_OF_FEW_SUMMED
        if is_few or sizes.results < fewest:
            return KERNEL_BYTES
        copies = call.bytes_of_all_copies - (bytes_of(call.weight) if call.is_point else 0)
        if sizes.least_channels >= _MANY_CHANNELS and not call.is_point:
            return copies + bytes_of_tiled_sums(sizes)
        is_several = call.is_point and sizes.results >= _LEAST_SUMMED_OF_POINTS
        return copies + (_SUMS_OF_POINTS * self._partial_sum if is_several else 0)

    @property
    def _bytes_of_few_summed(self) -> int:
        call = self.call
        if call.groups == 1 or call.is_depthwise or call.is_half:
            return KERNEL_BYTES
        return bytes_of_few_in_groups(call.tensor, call.weight, call.output)

    @property
    def _sums_few(self) -> bool:
        call = self.call
        is_half, outputs = call.is_half, int(call.output.shape[1])
        if call.is_thin_image and outputs <= _MOST_OF_THIN:
            return call.summed < _FEW_OF_THIN and call.result_points >= _MANY_POINTS
        few_summed = _FEW_FOR_WEIGHT[is_half]
        if is_half and call.groups == 1 and not call.is_point:
            return call.summed < few_summed and call.result_points <= _RESULTS_OF_FEW_SUMMED
        if self._is_of_fewest_summed:
            return False
        if not is_half and outputs <= _FEW_OUTPUTS:
            few_summed = _FEW_FOR_FEW_OUTPUTS
        return call.is_depthwise or call.summed < few_summed

    @property
    def _is_of_fewest_summed(self) -> bool:
        """Whether few numbers are summed, of many results, and all is copied still."""
        if self.call.is_half or not self._is_single_image:
            return False
        sizes = self._sizes
        is_small = sizes.kernel == _SMALL_KERNEL and sizes.results >= _LEAST_OF_FEWEST
        is_eight = sizes.inputs == sizes.outputs == _EIGHT_CHANNELS
        is_four = sizes.inputs == _FOUR_CHANNELS and sizes.outputs in COPIED_OUTPUTS
        return is_small and (is_eight or is_four)

    @property
    def _sums_of_points(self) -> int:
        """Bytes of the partial sums of a 1 x 1 kernel's gradient that is made of copies."""
        if self.call.is_half:
            return bytes_of_tiled_sums_of_halves(self._sizes) or 0
        return bytes_of_tiled_sums(self._sizes)

    @property
    def _usual_sums(self) -> int:
        """Bytes of the partial sums of a weight of which others are not known."""
        partial_sum, is_half = self._partial_sum, self.call.is_half
        is_whole = partial_sum > _LARGE_WEIGHT or self.call.result_points < _FEW_RESULTS
        if (is_half and is_whole) or self.call.groups > 1:
            return 0
        return min(_USUAL_PARTIAL_SUMS * partial_sum, _MOST_USUAL_BYTES)

    @property
    def _partial_sum(self) -> int:
        """Bytes of one as large as the weight."""
        return 4 * int(self.call.weight.numel())

    @property
    def _sizes(self) -> WeightSizes:
        call = self.call
        return WeightSizes.of(call.tensor, call.weight, call.output, call.stride)

    @property
    def _is_single_image(self) -> bool:
        """Whether it is of images or signals, not in groups: PyTorch takes a signal for an image of one line."""
        return self.call.groups == 1 and bool(self.call.tensor.dim() <= _IMAGE_DIMS)
