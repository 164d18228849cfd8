"""Batch normalization over ranks: operators whose shapes PyTorch knows on a GPU only.

aten/src/ATen/native/cuda/Normalization.cu (batch_norm_stats_cuda and its neighbors); called by
torch/nn/modules/_functions.py (SyncBatchNorm).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch


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


_RESULTS: dict[str, Callable[[Any], Any]] = {
    "aten.batch_norm_stats": lambda args: _by_channel(args[0], 2),
    "aten.batch_norm_gather_stats": lambda args: _by_channel(args[0], 2),
    "aten.batch_norm_gather_stats_with_counts": lambda args: _by_channel(args[0], 2),
    "aten.batch_norm_elemt": lambda args: torch.empty_like(args[0]),
    "aten.batch_norm_backward_reduce": _reduced,
    "aten.batch_norm_backward_elemt": lambda args: torch.empty_like(args[1]),
}


def synchronized_norm_result(name: str, args: Any, fake_mode: Any) -> Callable[[], Any] | None:
    """What makes an operator's results; None where it is another one."""
    make = _RESULTS.get(name)
    if make is None:
        return None

    def run() -> Any:
        with fake_mode:
            return make(args)

    return run
