"""What cuDNN's convolutions ask for: copies of their tensors with channels last, and partial sums, in
one workspace.

Which algorithm cuDNN takes is not known beforehand; taken is what most of 8,300 convolutions on an
H200 asked for (workspaces.json.xz, sweep.json.xz, few_channels.json.xz, batches_volumes.json.xz and
odd_channels.json.xz in benchmarks/prediction, cuDNN 9.19, three types, both layouts), and the
convolutions in recordings of programs on an H100 and an H200:

- tensors whose channels lie last are taken as they are; images of 16 bits get eight channels;
- so are 1 x 1 kernels without stride, but for the gradients of those in groups, and what sums few
  numbers: results that are made of fewer than ``_FEW_SUMMED``, and the input's gradient in float32 of
  few products, which with eight channels and more are only those of few numbers;
- so are images in 32 bits of few channels for results of 3 x 3, where these have a stride, or more
  channels, or few numbers (batches_volumes.json.xz);
- images of 32 bits with fewer than four channels are copied though these lie last, for the weight's
  gradient with kernels from 4 x 4 on; their own gradient needs no copies where they lie first;
- depthwise ones run in PyTorch's own kernels, which ask for nothing and begin with the weight's
  gradient (DepthwiseConv2d.cu); with channels last and 16 bits in cuDNN's;
- else input, weight and output are copied, but for the weight of 1 x 1 kernels with a stride; 1 x 1
  kernels without one are in pointwise.py;
- images of one and two channels in 32 bits are taken as they lie, but for kernels of 7 x 7 with many
  outputs; so are large ones for their weight's gradient (few_channels.json.xz);
- the partial sums of a weight's gradient, beside the copies, are in weight_gradients.py;
- some in 32 bits of many images are made of Fourier transforms (transforms.py);
- which results in 32 bits are written as they lie is in written_results.py;
- copies have their channels filled up: to a multiple of eight with 16 bits, of four with 32, but
  for images of fewer than four (odd_channels.json.xz, to the byte); in groups, to as many channels in as
  out, and with channels last only where these differ (few_units_groups.json.xz).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramlens.prediction.kernels.convolutions.filled_up_copies import (
    HEADER_BYTES,
    KERNEL_BYTES,
    bytes_of_copies,
    bytes_of_even_copies,
    bytes_of_odd_copies,
    bytes_of_uneven_copies,
    multiple_of,
)
from vramlens.prediction.kernels.convolutions.pointwise import (
    copies_for_input_gradient,
    copies_for_result,
)
from vramlens.prediction.kernels.convolutions.second_gradients import SecondGradient
from vramlens.prediction.kernels.convolutions.transforms import PlainConvolution
from vramlens.prediction.kernels.convolutions.tried_transforms import TriedTransforms
from vramlens.prediction.kernels.convolutions.weight_gradients import WeightGradient
from vramlens.prediction.kernels.convolutions.without_tf32 import Float32Convolution, allows_tf32
from vramlens.prediction.kernels.convolutions.written_results import is_written_as_it_lies
from vramlens.prediction.kernels.image_layout import (
    bytes_of,
    has_channels_last,
    is_half,
    lies_channels_last,
    lies_otherwise,
)

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_FEW_SUMMED = {True: 50, False: 86}
"""Numbers that a result is a sum of, by whether they have 16 bits."""
_FEW_PRODUCTS, _FEW_OF_MANY, _FEW_POINTS = 500_000_000, 120_000_000, 20_000
"""Of the input's gradient: products with few channels and with more, which are only few of so many
numbers of one channel.
"""
_SMALL_KERNEL, _FEW_OF_SMALL = 3, 48
_FEW_OF_LINE, _FEW_PRODUCTS_OF_LINE = 40, 264_000_000
"""Channels and products up to which the result of a signal in 32 bits is made of what lies there
(signal_layers.json.xz).
"""
_MANY_GROUPS = 48
_FEW_CHANNELS, _MANY_POINTS = 32, 40_000
_FEW_OF_STRIDED, _MANY_INPUTS_OF_STRIDED, _MOST_OUTPUTS_OF_STRIDED = 72, 448, 192
_LEAST_RESULTS_OF_STRIDED = 1_000
"""Of 1 x 1 kernels with a stride in 32 bits, whose images are taken as they lie: channels of image or result up
to which all are; else channels of both, and results of a channel (convolution_results.json.xz).
"""
_MOST_OF_THIN = 64
"""Outputs from which on an image of one or two channels is copied for kernels of 7 x 7."""
LEAST_CHANNELS, _LEAST_WIDE_CHANNELS = 8, 4
_FEW_ODD_CHANNELS = range(5, 16)
"""Of 16 bits, that are taken as they lie for a result, but for eight (odd_channels.json.xz)."""
_DEPTHWISE_OF_HALF = 5
"""The largest kernel of float16 that cuDNN runs depthwise, without stride."""
LINE_DIMS, _IMAGE_DIMS, _VOLUME_DIMS = 3, 4, 5
_MANY_OF_VOLUME = 64
"""Channels from which on a volume's result is written as it lies."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution, or the gradients of one.

    Attributes:
        output: the result, or its gradient.
        stride: the largest.
        groups: of channels.
        is_transposed: whether the program ran the gradient of its input, a transposed convolution:
            ``tensor`` is then that one's result, and ``output`` its input.
    """

    tensor: Any
    weight: Any
    output: Any
    stride: int
    groups: int
    is_transposed: bool

    @classmethod
    def of_forward(cls, args: Any, output: Any) -> Convolution:
        """What ``aten.convolution`` was called with, and its result."""
        return cls._of(args[0], args[1], output, args[3:9])

    @classmethod
    def of_backward(cls, args: Any) -> Convolution:
        """What ``aten.convolution_backward`` was called with."""
        return cls._of(args[1], args[2], args[0], args[4:10])

    @classmethod
    def _of(cls, tensor: Any, weight: Any, output: Any, options: Any) -> Convolution:
        stride, is_transposed, groups = max(options[0]), options[3], options[5]
        if is_transposed:
            tensor, output = output, tensor
        return cls(tensor, weight, output, stride, groups, is_transposed)

    @property
    def has_channels_last(self) -> bool:
        """Whether cuDNN is given tensors whose channels lie last."""
        return has_channels_last(self.tensor, self.weight)

    @property
    def bytes_of_result(self) -> int:
        """Of the workspace of the program's forward."""
        return self._bytes_of_input_gradient if self.is_transposed else self._forward_bytes

    @property
    def bytes_of_input_gradient(self) -> int:
        """Of the workspace of the gradient of the program's input."""
        return self._forward_bytes if self.is_transposed else self._bytes_of_input_gradient

    @property
    def without_tf32(self) -> Float32Convolution | None:
        """The same convolution where it has to run in float32; None where it may run otherwise."""
        is_last_or_half = self.has_channels_last or self.tensor.dtype is not torch.float32
        if is_last_or_half or self.groups > 1 or allows_tf32():
            return None
        return Float32Convolution.of(self.tensor, self.weight, self.output, self.stride)

    @property
    def _forward_bytes(self) -> int:
        if self._is_taken_with_odd_channels:
            return KERNEL_BYTES
        if (second := self._second_gradient) is not None:
            return second.bytes_of_result or KERNEL_BYTES
        if self.has_channels_last:
            own = bytes_of(self.tensor) + bytes_of(self.weight) + HEADER_BYTES
            return own if self.has_few_wide_channels else self.bytes_of_odd_copies
        if self.may_copy_points and copies_for_result(self.tensor, self.output):
            return bytes_of(self.tensor) + bytes_of(self.output)
        if self.is_pointwise or self._sums_few or self.without_tf32 is not None:
            return KERNEL_BYTES
        if self._is_small_image:
            return KERNEL_BYTES
        if self._is_strided_point:
            is_taken = not self.is_half and self._is_taken_with_stride
            return KERNEL_BYTES if is_taken else self.bytes_of_all_copies - bytes_of(self.weight)
        copies = self.copies(fills_inputs=not self._has_few_taken_channels)
        is_written = self.groups == 1 and is_written_as_it_lies(
            self.tensor, self.weight, self.output
        )
        return copies - (bytes_of(self.output) if is_written else 0)

    @property
    def _is_strided_point(self) -> bool:
        """Whether a kernel of one number, whose result is of no other form, has a stride."""
        is_image = self.tensor.dim() == _IMAGE_DIMS
        return self.is_point and self.groups == 1 and (is_image or self.is_half)

    @property
    def _is_taken_with_stride(self) -> bool:
        """Whether an image in 32 bits is taken as it lies for the results of a 1 x 1 kernel with a stride: with few
        channels, or many results of not too many.
        """
        inputs, outputs = int(self.tensor.shape[1]), int(self.output.shape[1])
        if min(inputs, outputs) <= _FEW_OF_STRIDED:
            return True
        are_usual = inputs < _MANY_INPUTS_OF_STRIDED and outputs <= _MOST_OUTPUTS_OF_STRIDED
        return are_usual and self.result_points >= _LEAST_RESULTS_OF_STRIDED

    @property
    def may_copy_points(self) -> bool:
        """Whether it is a 1 x 1 kernel that may run in 16 bits or TF32."""
        is_plain = self.is_pointwise and self.groups == 1 and self.tensor.dim() == _IMAGE_DIMS
        return is_plain and self.without_tf32 is None

    @property
    def _is_taken_with_odd_channels(self) -> bool:
        """Whether a result of few odd channels is made of an image as it lies."""
        inputs, outputs = int(self.tensor.shape[1]), int(self.output.shape[1])
        is_odd = inputs % multiple_of(self.tensor) > 0 and self.groups == 1
        if self.is_half:
            is_small = inputs < LEAST_CHANNELS or max(self.weight.shape[2:]) <= _SMALL_KERNEL
            return is_odd and inputs in _FEW_ODD_CHANNELS and is_small
        is_few = is_odd and _LEAST_WIDE_CHANNELS < inputs < LEAST_CHANNELS
        return self.has_channels_last and (is_few or outputs < _LEAST_WIDE_CHANNELS)

    @property
    def _bytes_of_input_gradient(self) -> int:
        if self.is_grouped_point:
            return self.bytes_of_all_copies
        if self.has_channels_last:
            own_bytes = self.own_bytes
            return own_bytes if self.has_few_wide_channels else self.bytes_of_odd_copies
        if self.may_copy_points and copies_for_input_gradient(self.tensor, self.output):
            return bytes_of(self.tensor) + bytes_of(self.output)
        if self.is_pointwise or self.is_depthwise or self.has_few_wide_channels:
            return KERNEL_BYTES
        if (without_tf32 := self.without_tf32) is not None:
            return without_tf32.bytes_of_input_gradient or KERNEL_BYTES
        plain = self.plain
        if plain is not None and plain.makes_input_in_tiles:
            return plain.bytes_of_input_tiles
        is_small = self.groups > _MANY_GROUPS if self.is_half else self._makes_few_products
        uncopied = bytes_of(self.weight) if self.is_point and self.groups == 1 else 0
        return KERNEL_BYTES if is_small else self.bytes_of_all_copies - uncopied

    @property
    def _makes_few_products(self) -> bool:
        if int(self.tensor.shape[1]) < LEAST_CHANNELS:
            return self._products < _FEW_PRODUCTS
        return self._points < _FEW_POINTS and self._products < _FEW_OF_MANY

    @property
    def bytes_of_weight_gradient(self) -> int:
        """Of the workspace of the weight's gradient."""
        return WeightGradient(self).bytes_of_workspace

    @property
    def most_of_weight_transforms(self) -> int:
        """Of a weight's gradient that may be made of transforms; 0 where it is not."""
        if (without_tf32 := self.without_tf32) is not None:
            return without_tf32.bytes_of_weight_gradient
        plain = self.plain
        if plain is None or not plain.may_make_weight_of_transforms:
            return 0
        return plain.bytes_of_weight_transforms

    @property
    def most_of_input_tiles(self) -> int:
        """Of an input's gradient that may be made of transforms in tiles; 0 where it is not."""
        plain = None if self.without_tf32 is not None else self.plain
        if plain is None or not plain.may_make_input_in_tiles:
            return 0
        return plain.bytes_of_input_tiles

    @property
    def most_of_result_transforms(self) -> int:
        """Of a result that may be; 0 where it is not."""
        if (second := self._second_gradient) is not None:
            return second.most_of_transforms
        without_tf32 = self.without_tf32
        return 0 if without_tf32 is None else without_tf32.most_of_result

    @property
    def _second_gradient(self) -> SecondGradient | None:
        """The same convolution where it is the gradient of a weight, derived once more."""
        is_other = self.has_channels_last or self.is_transposed or self.groups > 1
        if is_other or self.stride > 1:
            return None
        return SecondGradient.of(self.tensor, self.weight, self.output, has_tf32=allows_tf32())

    @property
    def plain(self) -> PlainConvolution | None:
        """The same convolution where cuDNN may transform it; None where it does not."""
        is_wide = self.tensor.dtype is torch.float32 and not self.has_channels_last
        is_image = self.tensor.dim() == _IMAGE_DIMS and not self.is_transposed
        is_single = self.stride == 1 and self.groups == 1 and not self.is_point
        if not (is_wide and is_image and is_single):
            return None
        return PlainConvolution(self.tensor, self.weight, self.output)

    def bytes_of_tried_transforms(self, direction: str) -> int:
        """Of the plan of transforms that cuDNN tries for the program's ``forward``, or the gradient of its ``input``
        or ``weight``; 0 without one.
        """
        plans = TriedTransforms.of(
            (self.tensor, self.weight, self.output),
            self.stride,
            self.groups,
            has_channels_last=self.has_channels_last,
        )
        if plans is None:
            return 0
        if direction == "weight":
            return plans.of_weight_gradient
        is_result = (direction == "forward") != self.is_transposed
        return plans.of_result if is_result else plans.of_input_gradient

    @property
    def most_of_plans(self) -> int:
        """Of the largest plan for the result or the input's gradient without transforms."""
        return self.bytes_of_all_copies - (bytes_of(self.weight) if self.is_pointwise else 0)

    @property
    def most_of_weight_plans(self) -> int:
        """Of the largest one for the weight's gradient: in 16 bits with channels last one partial sum, or copies of
        odd channels.
        """
        if not self.has_channels_last:
            return max(self.bytes_of_all_copies, self.bytes_of_weight_gradient)
        is_copied = self.is_half and self.groups == 1
        others = self.bytes_of_odd_copies if is_copied else self.bytes_of_weight_gradient
        return max(4 * int(self.weight.numel()), others)

    def bytes_of_copies(self, *tensors: Any) -> list[int]:
        """Bytes of the copies of those tensors that do not lie as cuDNN is given them."""
        is_last = self.has_channels_last
        return [
            bytes_of(tensor)
            for tensor in tensors
            if not (lies_channels_last(tensor) if is_last else tensor.is_contiguous())
        ]

    @property
    def copies_gradient_once(self) -> bool:
        """Whether the gradient is copied, if at all, for both gradients that are made of it, not for
        each: where it lies otherwise than the input, or PyTorch's own kernel runs.
        """
        is_otherwise = lies_otherwise(self.output, is_last=self.has_channels_last)
        return self.is_transposed or self.runs_in_own_kernel or is_otherwise

    @property
    def _is_small_image(self) -> bool:
        """Whether the result of an image in 32 bits is taken as it lies for its few channels."""
        inputs, outputs = int(self.tensor.shape[1]), int(self.output.shape[1])
        is_wide = self.tensor.dim() <= _IMAGE_DIMS and self.tensor.dtype is torch.float32
        if is_wide and self.is_line and self.groups == 1:
            return inputs <= _FEW_OF_LINE and self._products <= _FEW_PRODUCTS_OF_LINE
        if not is_wide or self.groups > 1 or max(self.weight.shape[2:]) > _SMALL_KERNEL:
            return False
        if self._points < _MANY_POINTS and inputs <= _FEW_OF_SMALL:
            return True
        is_few = max(inputs, outputs) <= _FEW_CHANNELS
        return is_few and (self.stride > 1 or inputs < outputs)

    @property
    def _points(self) -> int:
        """Numbers of one channel of all images."""
        return int(self.tensor.numel() // self.tensor.shape[1])

    @property
    def result_points(self) -> int:
        """Numbers of one channel of all results."""
        return int(self.output.numel() // self.output.shape[1])

    @property
    def is_line(self) -> bool:
        """Whether it is of signals."""
        return bool(self.tensor.dim() == LINE_DIMS)

    @property
    def is_half(self) -> bool:
        return is_half(self.tensor)

    @property
    def is_point(self) -> bool:
        return all(size == 1 for size in self.weight.shape[2:])

    @property
    def is_pointwise(self) -> bool:
        return self.stride == 1 and self.is_point

    @property
    def is_grouped_point(self) -> bool:
        return self.is_point and self.groups > 1 and not self.is_depthwise

    @property
    def has_few_wide_channels(self) -> bool:
        """Whether an image of 32 bits has fewer channels than cuDNN takes as they lie."""
        return not self.is_half and int(self.tensor.shape[1]) < _LEAST_WIDE_CHANNELS

    def is_thin_volume_of(self, dtype: Any) -> bool:
        """Whether it is a volume of that type with so few channels."""
        is_volume = self.tensor.dim() == _VOLUME_DIMS and self.tensor.dtype is dtype
        return is_volume and int(self.tensor.shape[1]) < _LEAST_WIDE_CHANNELS

    @property
    def _has_few_taken_channels(self) -> bool:
        """Whether it has so few that a result's copy of it has as many."""
        return self.has_few_wide_channels or self.is_thin_volume_of(torch.float16)

    @property
    def runs_in_own_kernel(self) -> bool:
        """Whether PyTorch's own kernel runs it, not cuDNN."""
        if not self.is_depthwise or self.is_transposed or self.has_channels_last:
            return False
        is_small = self.stride == 1 and max(self.weight.shape[2:]) <= _DEPTHWISE_OF_HALF
        return not (self.tensor.dtype is torch.float16 and is_small)

    @property
    def summed(self) -> int:
        """Numbers that one result is a sum of."""
        return int(self.tensor.shape[1] // self.groups * math.prod(self.weight.shape[2:]))

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is a group of its own (is_depthwise in Convolution.cpp)."""
        return bool(1 < self.groups == self.tensor.shape[1])

    @property
    def _sums_few(self) -> bool:
        if self.is_thin_image:
            is_stem = tuple(self.weight.shape[2:]) == (7, 7)
            return not is_stem or int(self.output.shape[1]) < _MOST_OF_THIN
        if self.is_thin_volume_of(torch.bfloat16):
            return True
        is_wide = int(self.tensor.shape[1]) >= _MANY_OF_VOLUME and self.groups == 1
        if is_wide and self.is_point and self.tensor.dim() == _VOLUME_DIMS:
            return False
        return self.is_depthwise or self.summed < _FEW_SUMMED[self.is_half]

    @property
    def is_thin_image(self) -> bool:
        """Whether it is an image of one or two channels in 32 bits."""
        is_thin = int(self.tensor.shape[1]) <= 2 and self.tensor.dtype is torch.float32
        return is_thin and self.tensor.dim() == _IMAGE_DIMS

    @property
    def _products(self) -> int:
        return int(self.output.numel()) * self.summed

    @property
    def own_bytes(self) -> int:
        """Of all three tensors."""
        tensors = self.tensor, self.weight, self.output
        return sum(map(bytes_of, tensors)) + HEADER_BYTES

    @property
    def bytes_of_all_copies(self) -> int:
        """Of copies of all three tensors as cuDNN takes them, with channels filled up."""
        return self.copies(fills_inputs=True)

    def copies(self, *, fills_inputs: bool) -> int:
        if self.groups > 1:
            return bytes_of_even_copies(self.tensor, self.weight, self.output)
        return bytes_of_copies(self.tensor, self.weight, self.output, fills_inputs=fills_inputs)

    @property
    def bytes_of_odd_copies(self) -> int:
        if self.is_point or self.is_depthwise:
            return KERNEL_BYTES
        if self.groups > 1:
            return bytes_of_uneven_copies(self.tensor, self.weight, self.output) or KERNEL_BYTES
        return bytes_of_odd_copies(self.tensor, self.weight, self.output) or KERNEL_BYTES
