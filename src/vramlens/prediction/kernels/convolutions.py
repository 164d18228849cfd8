"""What cuDNN's convolutions ask for: copies of their tensors with channels last, in one workspace.

The recording of ``resnet50`` (float32, H200, PyTorch 2.11) shows it for each of its 53
convolutions: a forward of more than 1 x 1 has its input, weight and output in the workspace, and a
few bytes; one of 1 x 1 without stride 400 bytes. The gradient of the input has both gradients (and
the weight, if that is more than 1 x 1), the gradient of the weight the input and the output's
gradient. Which algorithm cuDNN takes is not known beforehand. The bounds are those of 1,260
convolutions on an H200 (benchmarks/prediction/workspaces.json.xz, cuDNN 9.19, three types, both
layouts): none asked for more than input, weight and output together and a constant; the gradient of
the weight may have partial sums in float32 on top, one for each piece that the batch is cut into.
Of 180 more (sweep.json.xz: groups, dilations, images of three channels) one asked for more: the
gradient of a 3 x 3 weight of 32 channels, four times the bound.
"""

from __future__ import annotations

from typing import Any

from vramlens.prediction.requests.request_log import RequestLog
from vramlens.units import MIB

_FEW_BYTES, _POINTWISE_BYTES = 16, 400
_BEYOND_TENSORS = 8 * MIB
_BEYOND_OF_GRADIENT = 20 * MIB
_LEAST_CHANNELS = 8
_MOST_PARTIAL_SUMS, _MOST_OF_PARTIAL_SUMS = 64, 96 * MIB
"""Partial sums of a weight's gradient: how many, and of how many bytes together at most."""
SHARE = 0.03
BASIS = "convolution workspaces, as cuDNN requested them in recordings on an H200"


def bounds(tensor: Any, weight: Any, output: Any) -> tuple[int, int]:
    """The least and the most bytes of a forward's workspace."""
    tensors = _bytes(tensor) + _bytes(weight) + _bytes(output)
    return _POINTWISE_BYTES, tensors + _padding(tensor) + _BEYOND_TENSORS


def bounds_of_gradients(args: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """The least and the most bytes of the workspaces of the input's and the weight's gradient."""
    weight = args[2]
    tensors = sum(_bytes(tensor) for tensor in args[:3]) + _padding(args[1])
    partial_sums = min(_MOST_PARTIAL_SUMS * weight.numel() * 4, _MOST_OF_PARTIAL_SUMS)
    return (
        (_POINTWISE_BYTES, tensors + _BEYOND_OF_GRADIENT),
        (_POINTWISE_BYTES, tensors + _BEYOND_OF_GRADIENT + partial_sums),
    )


def forward_workspace(args: Any, output: Any) -> int:
    """Bytes that a convolution's forward asks for."""
    tensor, weight, stride = args[0], args[1], args[3]
    if _has_channels_last(tensor):
        return _POINTWISE_BYTES
    if _is_pointwise(weight) and all(step == 1 for step in stride):
        return _POINTWISE_BYTES
    return _bytes(tensor) + _bytes(weight) + _bytes(output) + _FEW_BYTES


def backward_workspaces(args: Any) -> tuple[int, int]:
    """Bytes that the gradients of the input and of the weight ask for."""
    gradient, tensor, weight = args[0], args[1], args[2]
    if _has_channels_last(tensor):
        return _POINTWISE_BYTES, _POINTWISE_BYTES
    size = _bytes(gradient) + _bytes(tensor) + _FEW_BYTES
    if not _is_pointwise(weight):
        size += _bytes(weight)
    return size, size


def note_backward(log: RequestLog, args: Any, outputs: list[Any], of_bias: Any) -> None:
    """The gradients of a convolution with their workspaces, in cuDNN's order."""
    by_input, by_weight = zip(backward_workspaces(args), bounds_of_gradients(args), strict=True)
    mask = list(args[10]) if len(args) > 10 else [True, True, True]
    remaining = list(outputs)
    for is_wanted, workspace in zip(mask, (by_input, by_weight, None), strict=False):
        if not is_wanted or not remaining:
            continue
        gradient = remaining.pop(0)
        log.note(gradient)
        if workspace is None:
            of_bias(gradient)
        else:
            log.scratch(*workspace)


def _padding(tensor: Any) -> int:
    """Bytes of two copies with channels filled up to eight, where an image has fewer."""
    channels = int(tensor.shape[1])
    if channels >= _LEAST_CHANNELS:
        return 0
    return 2 * _bytes(tensor) * _LEAST_CHANNELS // max(1, channels)


def _is_pointwise(weight: Any) -> bool:
    return all(size == 1 for size in weight.shape[2:])


def _has_channels_last(tensor: Any) -> bool:
    return bool(tensor.dim() == 4 and tensor.shape[1] > 1 and tensor.stride(1) == 1)


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())
