"""Where the channels of images lie, in convolutions and enlarged images.

Enlarged images (``torch.nn.functional.interpolate``) lie as their inputs do, of few channels, too,
where PyTorch's formula for shapes says otherwise (UpSample*.cpp); cuda/UpSampleBilinear2d.cu and its
neighbors copy a gradient whose numbers lie apart. So does cuDNN's normalization by batch.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from vramlens.prediction.kernels.kernel_call import KernelCall, Rule
from vramlens.prediction.tensors.operator_schema import Operator

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_LINE_DIMS, _IMAGE_DIMS, _HALF_BYTES = 3, 4, 2
_ENLARGES = re.compile(r"aten\.upsample_(nearest|bilinear|bicubic)2d")
_PLACES_OF_INPUT = {"aten.convolution": 0, "aten.convolution_backward": 1}


def has_channels_last(tensor: Any, weight: Any) -> bool:
    """Whether cuDNN is given tensors whose channels lie last: where one of them has them so
    (cudnn_conv_suggest_memory_format in aten/src/ATen/native/ConvUtils.h).
    """
    if torch.float64 in (tensor.dtype, weight.dtype):
        return False
    if tensor.dim() == _LINE_DIMS:  # a line is made contiguous first (Convolution.cpp)
        return _has_strides_of_channels_last(weight)
    return _has_strides_of_channels_last(tensor) or _has_strides_of_channels_last(weight)


def is_with_channels_last(name: str, args: Any) -> bool:
    """Whether an operator is a convolution on the device, or enlarges images there, and its results
    have channels last.
    """
    if _ENLARGES.fullmatch(name):
        is_last = _format_of(args[0]) is torch.channels_last
        return bool(is_last and args[0].fake_device.type == "cuda")
    place = _PLACES_OF_INPUT.get(name)
    if place is None or args[place].fake_device.type != "cuda":
        return False
    return has_channels_last(args[place], args[place + 1])


def results_with_channels_last(operator: Operator, args: Any, fake_mode: Any) -> Any:
    """Results as CUDA makes them: a build without it does not know where their channels lie."""
    with fake_mode:
        outputs = operator.function(*args)
        if isinstance(outputs, tuple):
            return tuple(map(_with_channels_last, outputs))
        return _with_channels_last(outputs)


def _with_channels_last(output: Any) -> Any:
    if output is None or output.dim() not in (_LINE_DIMS, _IMAGE_DIMS):
        return output
    if output.dim() == _LINE_DIMS:
        return _with_channels_last(output.unsqueeze(2)).squeeze(2)
    return torch.empty_like(output, memory_format=torch.channels_last)


def _has_strides_of_channels_last(tensor: Any) -> bool:
    """Whether strides say so. They do in weights of 1x1 that were turned so, too, which lie
    contiguous in either order.
    """
    image = _as_image(tensor)
    return image.dim() == _IMAGE_DIMS and _format_of(image) is torch.channels_last


def _format_of(image: Any) -> Any:
    from torch._prims_common import suggest_memory_format

    return suggest_memory_format(image)


def lies_channels_last(tensor: Any) -> bool:
    """Whether an image's channels lie last."""
    image = _as_image(tensor)
    is_image = image.dim() == _IMAGE_DIMS
    return bool(is_image and image.is_contiguous(memory_format=torch.channels_last))


def lies_otherwise(tensor: Any, *, is_last: bool) -> bool:
    """Whether an image's strides say that its channels lie last where those of others do not, or the
    other way around.
    """
    image = _as_image(tensor)
    return (_format_of(image) is not torch.contiguous_format) != is_last


def _as_image(tensor: Any) -> Any:
    """A line is an image of one row (view1d_as_2d in Convolution.cpp)."""
    return tensor.unsqueeze(2) if tensor.dim() == _LINE_DIMS else tensor


def _copied_gradient(call: KernelCall) -> list[int]:
    """Of the copy that a backward makes of its gradient."""
    gradient = call.args[0]
    is_ordered = gradient.is_contiguous(memory_format=_format_of(gradient))
    return [] if is_ordered else [gradient.nbytes]


def _copied_for_norm(call: KernelCall) -> list[int]:
    """Of the copy of a gradient that lies otherwise than the input that cuDNN normalized by batch
    (_batch_norm_impl_index in Normalization.cpp; cudnn_batch_norm_backward in cudnn/BatchNorm.cpp).
    """
    gradient, tensor, weight = call.args[:3]
    is_image = weight is not None and tensor.dim() >= _LINE_DIMS
    if not is_image or not call.argument(7, "train") or tensor.dtype is torch.bfloat16:
        return []
    is_ordered = gradient.is_contiguous(memory_format=_format_of(tensor))
    return [] if is_ordered else [gradient.nbytes]


FIRST: dict[str, Rule] = {"aten.native_batch_norm_backward": _copied_for_norm}
"""What is asked for before the results."""
RULES: dict[str, Rule] = {
    f"aten.{name}_backward": _copied_gradient
    for name in (
        "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
        "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
        "upsample_bicubic2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
    )
}  # fmt: skip


def bytes_of(tensor: Any) -> int:
    """Bytes of a tensor's numbers."""
    return int(tensor.numel() * tensor.element_size())


def is_half(tensor: Any) -> bool:
    """Whether a tensor's numbers have 16 bits."""
    return bool(tensor.element_size() == _HALF_BYTES)
