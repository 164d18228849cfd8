"""What convolutions ask for, in order: their results, copies of what lies otherwise, and workspaces,
with what these are at least and at most.

Bounds: none asked for more than input, weight and output together and a constant; the gradient of
the weight may have partial sums in float32 on top, or be made of transforms. In 16 bits and with
channels last it copies what has odd channels only (99.4% of weight_gradients.json.xz in
benchmarks/prediction lie within).

aten/src/ATen/native/cudnn/ConvShared.cpp (cudnn_convolution_backward and what it calls): the
gradient of a result is copied for each of the gradients that are made of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramlens.cards.known_cards import Card
from vramlens.prediction.kernels.convolutions.convolution import LEAST_CHANNELS, Convolution
from vramlens.prediction.kernels.convolutions.filled_up_copies import KERNEL_BYTES
from vramlens.prediction.kernels.convolutions.weight_gradients import (
    BEYOND_OF_GRADIENT,
    WeightGradient,
)
from vramlens.prediction.kernels.image_layout import bytes_of
from vramlens.prediction.kernels.kernel_call import KernelCall, Rule
from vramlens.prediction.kernels.reductions import partial_sums
from vramlens.prediction.requests.request_log import RequestLog
from vramlens.units import MIB

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_BEYOND_TENSORS = 8 * MIB
SHARE = 0.03
BASIS = "convolution workspaces, as cuDNN requested them in recordings on an H200"
_DIRECTIONS = "input", "weight", "bias"


class TriedPlans:
    """Convolutions that cuDNN has tried its plans for (``torch.backends.cudnn.benchmark``).

    The first time that it meets one it asks for the largest workspace of all plans that need no more than
    the card has free, empties the cache, and asks for that of the plan it takes (get_plans_from_find in
    aten/src/ATen/native/cudnn/Conv_v8.cpp): in 32 bits that of Fourier transforms, many times the tensors. Without
    these ``flowers_finetune`` shows it on an H100: copies of the tensors, for the first layer of an image the result
    once more, and of a weight's gradient with channels last one sum in float32.
    """

    def __init__(self, log: RequestLog, card: Card) -> None:
        self._log, self._card = log, card
        self._tried: set[Any] = set()

    def note(
        self, direction: str, call: Convolution, others_bytes: int, limits: tuple[int, int]
    ) -> None:
        """What the trial of all plans asks for, where one is run.

        Args:
            others_bytes: of the largest plan that is not of transforms.
        """
        if not self._is_first(direction, call):
            return
        transforms_bytes = call.bytes_of_tried_transforms(direction)
        free_bytes = self._card.room_bytes - self._log.allocated_bytes
        has_room = transforms_bytes <= free_bytes
        size = max(others_bytes, transforms_bytes) if has_room else others_bytes
        least_bytes, most_bytes = limits
        self._log.scratch(size, (least_bytes, max(size, most_bytes + bytes_of(call.output))))
        self._log.empty_cache()

    def _is_first(self, direction: str, call: Convolution) -> bool:
        """Whether all plans are tried now, for a result or one of the gradients."""
        if not torch.backends.cudnn.benchmark or call.is_depthwise:
            return False
        shapes = call.tensor.shape, call.weight.shape, call.output.shape
        key = direction, *shapes, call.tensor.dtype, call.stride, call.has_channels_last
        is_new = key not in self._tried
        self._tried.add(key)
        return is_new


def _copied_for_result(call: KernelCall) -> list[int]:
    tensor, weight = call.args[:2]
    return Convolution.of_forward(call.args, tensor).bytes_of_copies(tensor, weight)


FIRST: dict[str, Rule] = {"aten.convolution": _copied_for_result}
"""What is asked for before the results (cudnn_convolution in cudnn/ConvShared.cpp)."""


def note_forward(log: RequestLog, tried: TriedPlans, args: Any, output: Any) -> None:
    """The workspace of a convolution."""
    call = Convolution.of_forward(args, output)
    most_of_copies = max(call.bytes_of_all_copies, call.own_bytes + _padding(args[0]))
    most = most_of_copies + _BEYOND_TENSORS
    limits = KERNEL_BYTES, max(most, call.most_of_result_transforms)
    tried.note("forward", call, call.most_of_plans, limits)
    if not call.runs_in_own_kernel:
        log.scratch(call.bytes_of_result, limits)


def bounds_of_gradients(args: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """The least and the most bytes of the workspaces of the input's and the weight's gradient."""
    call = Convolution.of_backward(args)
    tensors = max(call.bytes_of_all_copies, call.own_bytes + _padding(args[1]))
    most_of_input = max(tensors + BEYOND_OF_GRADIENT, call.most_of_input_tiles)
    most_of_weight = WeightGradient(call).most_of_workspace(tensors)
    return (KERNEL_BYTES, most_of_input), (KERNEL_BYTES, most_of_weight)


def note_backward(
    log: RequestLog, tried: TriedPlans, card: Card, args: Any, outputs: list[Any]
) -> None:
    """The gradients of a convolution with their workspaces, in cuDNN's order."""
    call = Convolution.of_backward(args)
    mask = list(args[10]) if len(args) > 10 else [True, True, True]
    is_once = call.copies_gradient_once
    held = [*(args[1:2] if mask[1] else ()), *(args[:1] if is_once else ())]
    copies = [log.allocate(size) for size in call.bytes_of_copies(*held)]
    apart = call.bytes_of_copies(*(() if is_once else args[:1]))
    of_input, of_weight = bounds_of_gradients(args)
    workspaces = {
        "input": (call.bytes_of_input_gradient, call.most_of_plans, of_input),
        "weight": (call.bytes_of_weight_gradient, call.most_of_weight_plans, of_weight),
    }
    wanted_directions = [
        direction for direction, is_wanted in zip(_DIRECTIONS, mask, strict=False) if is_wanted
    ]
    gradients = dict(zip(wanted_directions, outputs, strict=False))
    for direction in ("weight", "input", "bias") if call.runs_in_own_kernel else _DIRECTIONS:
        gradient = gradients.get(direction)
        if gradient is None:
            continue
        first = [log.allocate(size) for size in apart] if direction == "weight" else []
        log.note(gradient)
        if direction == "input":
            first = [log.allocate(size) for size in (*call.bytes_of_copies(args[2]), *apart)]
        if direction == "bias":
            _note_sums(log, card, args[0], gradient)
        elif not call.runs_in_own_kernel:
            usual, most_of_plans, limits = workspaces[direction]
            tried.note(direction, call, most_of_plans, limits)
            log.scratch(usual, limits)
        _free(log, first)
    _free(log, copies)


def _note_sums(log: RequestLog, card: Card, tensor: Any, gradient: Any) -> None:
    """The partial sums of a bias' gradient."""
    dims = [dim for dim in range(tensor.dim()) if dim != 1]
    _free(log, [log.allocate(size) for size in partial_sums(tensor, dims, gradient.numel(), card)])


def _free(log: RequestLog, rows: list[int]) -> None:
    for row in reversed(rows):
        log.free(row)


def _padding(tensor: Any) -> int:
    """Bytes of two copies with channels filled up to eight, where an image has fewer."""
    channels = int(tensor.shape[1])
    if channels >= LEAST_CHANNELS:
        return 0
    return 2 * bytes_of(tensor) * LEAST_CHANNELS // max(1, channels)
