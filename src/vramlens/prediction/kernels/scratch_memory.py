"""Memory that operators of CUDA hold beside their results and give back before they return: copies
of their inputs, and what they work in.

Copies of numbers that do not lie one after the other: SoftMax.cu (host_softmax,
host_softmax_backward), layer_norm_kernel.cu, Embedding.cu (embedding_dense_backward_cuda),
TensorTopK.cu and ScanUtils.cuh in aten/src/ATen/native/cuda begin with ``contiguous()``, Embedding.cpp
(embedding) with ``reshape(-1)``; ``rlhf_ppo`` shows the copy
of logits without their last word. Copies of another type: ReduceOpsUtils.h
(make_reduction_from_out_ty) takes the input in the type of the result, but for 16 bits summed in 32,
and ReduceOps.cpp (impl_func_cum_ops) always; ``clip_retrieval`` shows the 1.76 GiB of a comparison
that is counted.

Softmax's backward holds the gradient
times the result (softmax_backward_cuda_out in SoftMax.cu; ``ddpm``). Draws: Distributions.cpp and
MultinomialKernel.cu. Fourier transforms: SpectralOps.cpp (_fft_r2c_cufft, _fft_c2r_cufft,
_exec_fft). Distances' gradients: DistanceKernel.cu (cdist_backward_kernel_impl and its neighbor).
What else stands here was seen in single operators on an H100 (``operators.py`` in
benchmarks/prediction).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vramlens.prediction.kernels.kernel_call import KernelCall, Rule, used_and_gone
from vramlens.prediction.kernels.reductions import Reduction, partial_sums

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_COPIED = {
    "aten._softmax": (0,),
    "aten._log_softmax": (0,),
    "aten._softmax_backward_data": (0, 1),
    "aten._log_softmax_backward_data": (0, 1),
    "aten.cumsum": (0,),
    "aten.cumprod": (0,),
    "aten.logcumsumexp": (0,),
    "aten.topk": (0,),
}
"""Operators that have their results made first, and which of their arguments they then copy."""
_COPIED_FIRST = {
    "aten.native_layer_norm": (0,),
    "aten.native_layer_norm_backward": (0, 1),
    "aten.embedding_dense_backward": (0, 1),
    "aten.embedding": (1,),
}
"""Operators that make their results themselves, and which of their arguments they copy before."""
_REDUCTIONS = {"aten.sum", "aten.nansum", "aten.mean", "aten.prod"}
_RUNNING = {"aten.cumsum", "aten.cumprod"}
_SHORT_TRANSFORM = 128
_MANY_ROWS, _MOST_SUMMED = 65_536, 1 << 20


def copied_first(call: KernelCall) -> list[int]:
    """Bytes of the copies that an operator makes of its inputs before its results."""
    if (
        call.name == "aten.embedding" and call.args[1].dim() < 2
    ):  # no reshape: looked up as they lie
        return []
    return _copies(call, _COPIED_FIRST)


def copied_bytes(call: KernelCall) -> list[int]:
    """Bytes of the copies that an operator makes of its inputs beside its results."""
    sizes = _copies(call, _COPIED)
    if call.name in _REDUCTIONS or call.name in _RUNNING:
        sizes += _cast_bytes(call)
    return sizes


def _copies(call: KernelCall, places: dict[str, tuple[int, ...]]) -> list[int]:
    """Bytes of those of an operator's arguments whose numbers do not lie one after the other."""
    tensors = (call.args[place] for place in places.get(call.name, ()))
    return [tensor.nbytes for tensor in tensors if not tensor.is_contiguous()]


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
    gates, bias = call.outputs[: len(call.outputs) // 2], call.outputs[-1]
    sizes: list[int] = []
    for tensor in gates[: 2 if "gru" in call.name else 1]:
        sums = partial_sums(tensor, [0], bias.numel(), call.card)
        sizes += [*sums, *(-size for size in sums)]
    return sizes


def _as_complex(call: KernelCall) -> list[int]:
    """Of a real result that is first made as a complex one (unary_op_impl_with_complex_to_float)."""
    return [call.args[0].nbytes] if call.args[0].is_complex() else []


def _wide_chances(call: KernelCall) -> list[int]:
    """Of chances in 32 bits."""
    chances = call.argument(1, "p", call.args[0])
    is_short = isinstance(chances, torch.Tensor) and chances.element_size() < 4
    return [chances.numel() * 4] if is_short else []


def _means(call: KernelCall) -> list[int]:
    """Of a mean by indices: ones like what is summed, their sums, and which of them are none."""
    source, result = call.args[3], call.outputs[0]
    is_mean = call.argument(4, "reduce") == "mean"
    return [source.nbytes, result.nbytes, result.numel()] if is_mean else []


def _draws(call: KernelCall) -> list[int]:
    """Of draws that the probabilities are divided by, or of their running sums."""
    several = call.args[1] > 1 and call.argument(2, "replacement", default=False)
    return [call.args[0].nbytes] * (3 if several else 1)


def _distances(call: KernelCall, others: int, power: float) -> list[int]:
    """Of each distance's part of a gradient, and of their sums over the other points."""
    gradient = call.outputs[0]
    if power == 0 or not gradient.numel():
        return []
    element_bytes = int(gradient.element_size())
    reduction = Reduction(
        outputs=gradient.numel(),
        inputs=others,
        is_inner=False,
        bytes_each=element_bytes,
        processors=call.card.processors,
    )
    return [others * gradient.nbytes, *reduction.buffers()]


def _summed_rows(call: KernelCall) -> list[int]:
    """Of the gradients of a normalization's weight and bias, where rows are many and short: sums of
    32 rows and more each, then their sum, which takes the gradient's place.
    """
    width = math.prod(call.args[2])
    rows = call.args[1].numel() // max(1, width)
    processors = call.card.processors
    if rows <= _MANY_ROWS or width // 32 >= processors / 2:
        return []
    summed = min(-(-rows // 32), _MOST_SUMMED // width)
    gradients = [gradient for gradient in call.outputs[1:] if gradient is not None]
    sizes = [summed * gradient.nbytes for gradient in gradients]
    for gradient in gradients:
        sums = Reduction(width, summed, is_inner=False, bytes_each=4, processors=processors)
        buffers = [size for size in sums.buffers() if size]
        sizes += [gradient.nbytes, *used_and_gone(buffers)]
    return sizes


def _renormed(call: KernelCall) -> list[int]:
    tensor, dim = call.args[0], call.args[2] % call.args[0].dim()
    dims = [other for other in range(tensor.dim()) if other != dim]
    return partial_sums(tensor, dims, tensor.shape[dim], call.card)


def _transform(call: KernelCall) -> list[int]:
    """Of a Fourier transform between real and complex numbers: cuFFT overwrites complex input, sums
    an odd length as complex numbers, and works in a copy where another dimension lies innermost.
    """
    tensor, last = call.args[0], call.args[1][-1] % call.args[0].dim()
    copies = int(tensor.is_complex()) + int(last != tensor.dim() - 1)
    real = call.outputs[0] if tensor.is_complex() else tensor
    length = real.shape[last]
    is_odd = length % 2 == 1 and length > _SHORT_TRANSFORM
    return [tensor.nbytes] * copies + [2 * real.nbytes] * int(is_odd)


FIRST: dict[str, Rule] = dict.fromkeys(_COPIED_FIRST, copied_first)
"""What is asked for before the results."""
RULES: dict[str, Rule] = {
    "aten.mse_loss": _losses,
    "aten.smooth_l1_loss": _losses,
    "aten.huber_loss": _losses,
    "aten.roll": _rolled,
    "aten._thnn_fused_lstm_cell_backward_impl": _summed_gates,
    "aten._thnn_fused_gru_cell_backward": _summed_gates,
    "aten._softmax_backward_data": lambda call: [call.args[0].nbytes],
    "aten._fft_c2r": _transform,
    "aten._fft_r2c": _transform,
    "aten.multinomial": _draws,
    "aten.native_layer_norm_backward": _summed_rows,
    "aten.renorm": _renormed,
    "aten._cdist_backward": lambda call: _distances(call, call.args[2].shape[-2], call.args[3]),
    "aten._pdist_backward": lambda call: _distances(call, len(call.args[1]) - 1, call.args[2]),
    "aten.index_reduce": _means,
    "aten.scatter_reduce": _means,
    "aten.im2col": lambda call: [call.args[0].nbytes],
    "aten.count_nonzero": lambda call: [call.args[0].numel(), call.args[0].numel() * 8],
    "aten.masked_scatter_": lambda call: [call.args[0].numel() * 8],
    **dict.fromkeys(("aten.abs", "aten.angle"), _as_complex),
    **dict.fromkeys(("aten.bernoulli", "aten.bernoulli_"), _wide_chances),
}
