"""Results of operators whose shapes PyTorch knows on a GPU only.

Batch normalization over ranks: aten/src/ATen/native/cuda/Normalization.cu (batch_norm_stats_cuda
and its neighbors), called by torch/nn/modules/_functions.py (SyncBatchNorm).
``torch.nn.GRUCell``: aten/src/ATen/native/cuda/RNN.cu (_thnn_fused_gru_cell_cuda and its backward).
CTC loss: aten/src/ATen/native/cuda/LossCTC.cu (ctc_loss_gpu_template and its backward, whose
gradient lies contiguous wherever the chances lie).
Losses that keep their parts: BinaryOps.cpp and PointwiseOps (mse_loss_out, smooth_l1_loss_out in
aten/src/ATen/native/Loss.cpp, binary_cross_entropy_out_cuda in cuda/Loss.cu).
Images sampled at a grid by cuDNN, where corners are aligned:
aten/src/ATen/native/cudnn/GridSampler.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_KEPT_BY_GRU_CELL = 5
"""Numbers that a GRU cell keeps for its backward, for each unit (GRU_WORKSPACE_MULTIPLIER)."""
_GATES_OF_GRU_CELL = 3


def _by_channel(tensor: Any, count: int) -> tuple[Any, ...]:
    """Numbers for each channel, in the type that sums are taken in."""
    dtype = torch.float64 if tensor.dtype is torch.float64 else torch.float32
    channels = int(tensor.shape[1])
    return tuple(tensor.new_empty((channels,), dtype=dtype) for _ in range(count))


def _reduced(args: Any) -> tuple[Any, ...]:
    """Sums of the gradient, and the gradients of weight and bias where they are wanted."""
    tensor, weight, of_input, of_weight, of_bias = args[1], args[4], args[5], args[6], args[7]
    sums = _by_channel(tensor, 2) if of_input else (tensor.new_empty((0,)),) * 2
    of_parameters = tuple(
        tensor.new_empty((tensor.shape[1],), dtype=tensor.dtype if weight is None else weight.dtype)
        if is_wanted
        else tensor.new_empty((0,))
        for is_wanted in (of_weight, of_bias)
    )
    return (*sums, *of_parameters)


def _gru_cell(args: Any) -> tuple[Any, Any]:
    """The next state, and what the backward reads."""
    state = args[2]
    saved_for_backward = state.new_empty((state.shape[0], state.shape[1] * _KEPT_BY_GRU_CELL))
    return state.new_empty(state.shape), saved_for_backward


def _gru_cell_backward(args: Any) -> tuple[Any, ...]:
    """Gradients of the gates of input and state, of the state, and of both biases."""
    of_state, _, has_bias = args
    samples, units = of_state.shape
    gates = _GATES_OF_GRU_CELL * units
    of_gates = tuple(of_state.new_empty((samples, gates)) for _ in range(2))
    of_biases = tuple(of_state.new_empty((gates,)) if has_bias else None for _ in range(2))
    return (*of_gates, of_state.new_empty(of_state.shape), *of_biases)


def _ctc_loss(args: Any) -> tuple[Any, Any]:
    """Each sample's loss, and the alphas of all steps, which the backward reads."""
    log_probs, target_lengths = args[0], args[3]
    steps, samples = log_probs.shape[0], log_probs.shape[1]
    alphas = log_probs.new_empty((samples, steps, 2 * max(target_lengths, default=0) + 1))
    return log_probs.new_empty((samples,)), alphas


def _reduced_loss(places: tuple[int, int], place_of_reduction: int) -> Callable[[Any], Any]:
    """A loss that is summed into the memory of all its parts, which lives as long as the sum."""

    def make(args: Any) -> Any:
        parts = torch.broadcast_shapes(*(args[place].shape for place in places))  # type: ignore[no-untyped-call]
        is_reduced = len(args) <= place_of_reduction or args[place_of_reduction] != 0
        losses = args[0].new_empty(parts)
        return losses.resize_(()) if is_reduced else losses

    return make


def _summed_columns(args: Any) -> Any:
    """An image in the memory of what it is summed from (col2im_cuda in cuda/Col2Im.cu)."""
    columns, (height, width), kernel = args[:3]
    shape = (*columns.shape[:-2], columns.shape[-2] // math.prod(kernel), height, width)
    room = max(columns.numel(), math.prod(shape))
    return columns.new_empty(room).resize_(shape)


def _sampled_image(args: Any) -> Any:
    """As many channels as the image has, at each point of the grid."""
    image, grid = args
    return image.new_empty((*image.shape[:2], *grid.shape[1:3]))


_RESULTS: dict[str, Callable[[Any], Any]] = {
    "aten.batch_norm_stats": lambda args: _by_channel(args[0], 2),
    "aten.batch_norm_gather_stats": lambda args: _by_channel(args[0], 2),
    "aten.batch_norm_gather_stats_with_counts": lambda args: _by_channel(args[0], 2),
    "aten.batch_norm_elemt": lambda args: torch.empty_like(args[0]),
    "aten.batch_norm_backward_reduce": _reduced,
    "aten.batch_norm_backward_elemt": lambda args: torch.empty_like(args[1]),
    "aten._thnn_fused_gru_cell": _gru_cell,
    "aten._thnn_fused_gru_cell_backward": _gru_cell_backward,
    "aten._ctc_loss": _ctc_loss,
    "aten.mse_loss": _reduced_loss((0, 1), 2),
    "aten.smooth_l1_loss": _reduced_loss((0, 1), 2),
    "aten.col2im": _summed_columns,
    "aten.binary_cross_entropy": _reduced_loss((0, 1), 3),
    "aten.cudnn_grid_sampler": _sampled_image,
    "aten.cudnn_grid_sampler_backward": lambda args: (
        args[0].new_empty(args[0].shape),
        args[1].new_empty(args[1].shape),
    ),
    "aten._ctc_loss_backward": lambda args: args[1].new_empty(args[1].shape),
}


def gpu_only_result(name: str, args: Any, fake_mode: Any) -> Callable[[], Any] | None:
    """What makes an operator's results; None where it is another one."""
    make = _RESULTS.get(name)
    if make is None:
        return None

    def run() -> Any:
        with fake_mode:
            return make(args)

    return run
