"""Memory that operators of CUDA hold beside their results and give back before they return: copies
of their inputs, and what they work in.

Copies of numbers that do not lie one after the other: SoftMax.cu (host_softmax,
host_softmax_backward), layer_norm_kernel.cu, Embedding.cu (embedding_dense_backward_cuda) and
ScanUtils.cuh in aten/src/ATen/native/cuda begin with ``contiguous()``; ``rlhf_ppo`` shows the copy
of logits without their last word. Copies of another type: ReduceOpsUtils.h
(make_reduction_from_out_ty) takes the input in the type of the result, but for 16 bits summed in 32,
and ReduceOps.cpp (impl_func_cum_ops) always; ``clip_retrieval`` shows the 1.76 GiB of a comparison
that is counted.

Softmax's backward holds the gradient
times the result (softmax_backward_cuda_out in SoftMax.cu; ``ddpm``), ``multinomial`` the draws that
the probabilities are divided by (Distributions.cpp; ``rlhf_ppo``). Inverse Fourier transforms of
real results: SpectralOps.cpp (_fft_c2r_cufft) copies its input, which cuFFT overwrites.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vramlens.prediction.kernels.kernel_call import KernelCall, Rule
from vramlens.prediction.kernels.reductions import partial_sums

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_COPIED = {
    "aten._softmax": (0,),
    "aten._log_softmax": (0,),
    "aten._softmax_backward_data": (0, 1),
    "aten._log_softmax_backward_data": (0, 1),
    "aten.native_layer_norm": (0,),
    "aten.native_layer_norm_backward": (0, 1),
    "aten.embedding_dense_backward": (0,),
    "aten.cumsum": (0,),
    "aten.cumprod": (0,),
    "aten.logcumsumexp": (0,),
}
"""Operators, and which of their arguments they copy."""
_REDUCTIONS = {"aten.sum", "aten.nansum", "aten.mean", "aten.prod"}
_RUNNING = {"aten.cumsum", "aten.cumprod"}


def copied_bytes(call: KernelCall) -> list[int]:
    """Bytes of the copies that an operator makes of its inputs first."""
    sizes = [
        call.args[place].nbytes
        for place in _COPIED.get(call.name, ())
        if not call.args[place].is_contiguous()
    ]
    if call.name in _REDUCTIONS or call.name in _RUNNING:
        sizes += _cast_bytes(call)
    return sizes


def _cast_bytes(call: KernelCall) -> list[int]:
    """Bytes of a copy in the type of the result."""
    before, after = call.args[0].dtype, call.outputs[0].dtype
    is_widened = before in (torch.float16, torch.bfloat16) and after is torch.float32
    if before is after or (is_widened and call.name in _REDUCTIONS):
        return []
    return [call.args[0].numel() * after.itemsize]


def _losses(call: KernelCall) -> list[int]:
    """Of the parts of a loss, where it is reduced."""
    is_reduced = call.argument(2, "reduction", 1) != 0
    shape = torch.broadcast_shapes(call.args[0].shape, call.args[1].shape)  # type: ignore[no-untyped-call]
    return [math.prod(shape) * call.args[0].element_size()] if is_reduced else []


def _rolled(call: KernelCall) -> list[int]:
    """Of a copy for each dimension but the last that is rolled (roll_common)."""
    return [call.outputs[0].nbytes] * (len(call.argument(2, "dims", ())) - 1)


def _summed_gates(call: KernelCall) -> list[int]:
    """Of the gradients of a cell's biases, sums over samples, one after the other."""
    gates, biases = call.outputs[: len(call.outputs) // 2], call.outputs[-1:]
    sizes: list[int] = []
    for tensor in gates[: 2 if "gru" in call.name else 1]:
        sums = partial_sums(tensor, [0], biases[0].numel(), call.card)
        sizes += [*sums, *(-size for size in sums)]
    return sizes


RULES: dict[str, Rule] = {
    "aten.mse_loss": _losses,
    "aten.smooth_l1_loss": _losses,
    "aten.huber_loss": _losses,
    "aten.roll": _rolled,
    "aten._thnn_fused_lstm_cell_backward_impl": _summed_gates,
    "aten._thnn_fused_gru_cell_backward": _summed_gates,
    "aten._fft_c2r": lambda call: [call.args[0].nbytes],
    "aten._softmax_backward_data": lambda call: [call.args[0].nbytes],
    "aten.multinomial": lambda call: [call.args[0].nbytes],
}
