"""What CUDA kernels ask for beside their results, and where they need less than a run with shapes
shows.

Beside each rule stands what it rests on: a file of PyTorch, or a recording that shows it.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vramlens.prediction.card.cards import Card
from vramlens.prediction.kernels import (
    convolutions,
    ctc_loss,
    enlarged_images,
    factorizations,
    recurrent,
)
from vramlens.prediction.kernels.casts import cast_bytes
from vramlens.prediction.kernels.contiguous_inputs import copied_bytes
from vramlens.prediction.kernels.gpu_only_results import gpu_only_result
from vramlens.prediction.kernels.reductions import Reduction
from vramlens.prediction.kernels.running_formula import RunningFormula
from vramlens.prediction.kernels.scratch_memory import scratch_bytes
from vramlens.prediction.requests.request_log import RequestLog, is_of_prediction
from vramlens.prediction.tensors.operator_schema import Operator
from vramlens.units import MIB

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_PRODUCTS = {
    "aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.addbmm", "aten.addmv", "aten.mv", "aten.dot",
    "aten.linear", "aten._addmm_activation",
}  # fmt: skip
_SUMS = {
    "aten.sum", "aten.mean", "aten.amax", "aten.amin", "aten.max", "aten.min", "aten.any", "aten.all", "aten.prod",
    "aten.norm", "aten.linalg_vector_norm", "aten.var", "aten.std", "aten.var_mean", "aten.argmax", "aten.argmin",
    "aten.nansum",
}  # fmt: skip
_MOMENTS = {"aten.var", "aten.std", "aten.var_mean"}
_POSITIONS = {"aten.argmax", "aten.argmin", "aten.max", "aten.min"}
_IN_PLACE_IN_FORMULAS = {"aten.index_add", "aten.index_put", "aten.scatter", "aten.scatter_add"}
"""Operators that autograd's formulas run in place on fresh zeros, but not on tensors of a kind of
their own, such as shapes' (isTensorSubclassLike in torch/csrc/autograd/FunctionsManual.cpp and
aten/src/ATen/native/TensorAdvancedIndexing.cpp).
"""
_SEEDS_ON_HOST = {"aten._scaled_dot_product_efficient_attention"}
_LT_WORKSPACE = MIB
"""cuBLASLt's, for products with a bias (aten/src/ATen/cuda/CUDABlas.cpp, _getWorkspaceSize):
recording of gpt.
"""


class Kernels:
    """The rules of one card.

    Attributes:
        uncertain: rules that were used and are less than exact, with the share of the peak by which
            each may be off.
        not_modelled: what may be asked for and is not, with its bytes.
    """

    def __init__(self, log: RequestLog, card: Card) -> None:
        self._log, self._card = log, card
        self.uncertain: dict[str, float] = {}
        self.not_modelled: dict[str, int] = {}
        self._sole_uses: tuple[int, int] | None = None
        self._formula = RunningFormula(log)
        self._handles: set[tuple[int, int]] = set()
        self._lt_handles: set[tuple[int, int]] = set()
        self._has_dropout_states = False
        self._rules: dict[str, Callable[[Any, Any, list[Any]], None]] = {
            "aten.convolution": self._convolution,
            "aten._scaled_dot_product_efficient_attention_backward": self._efficient_backward,
            "aten._scaled_dot_product_flash_attention_backward": self._flash_backward,
            "aten._scaled_dot_product_cudnn_attention": self._cudnn_attention,
            "aten._scaled_dot_product_cudnn_attention_backward": self._cudnn_attention_backward,
            "aten._softmax_backward_data": self._softmax_backward,
            "aten._ctc_loss_backward": self._ctc_backward,
            "aten.multinomial": self._multinomial,
        }

    def accumulated(self, operator: Operator, args: Any, tensors: list[Any]) -> Any | None:
        """The gradient that autograd adds another to in place, although shapes' tensors make it a
        new one.

        torch/csrc/autograd/input_buffer.cpp (can_accumulate_inplace): where nothing else holds the
        first one, and the backward makes no graph of its own.
        """
        self._formula.follow()
        if operator.name in _IN_PLACE_IN_FORMULAS:
            return args[0] if is_called_by_autograd() else None
        is_sum = operator.name == "aten.add" and len(tensors) == 2 and is_called_by_autograd()
        return tensors[0] if is_sum and self._is_accumulation(*tensors) else None

    def _is_accumulation(self, first: Any, second: Any) -> bool:
        if first.shape != second.shape or first.dtype != second.dtype:
            return False
        if torch.is_grad_enabled() or self._formula.made(first):
            return False
        uses = first._use_count(), torch._C._storage_Use_Count(first.untyped_storage()._cdata)
        if self._sole_uses is None:
            self._sole_uses = uses
        return bool(uses[0] <= self._sole_uses[0] and uses[1] <= self._sole_uses[1])

    def learn_sole_uses(self) -> None:
        """Sees what the counts of uses are of a gradient that only autograd holds: they differ
        by version.
        """
        self._sole_uses = None
        weight = torch.ones(4, 4, device="cuda", requires_grad=True)
        doubled = weight * 2
        total: Any = doubled.exp().sum() + doubled.sin().sum()
        total.backward()

    def noted(self, operator: Operator, args: Any, outputs: list[Any]) -> bool:
        """Whether an operator's results were asked for here, with workspaces in between."""
        if (
            operator.name != "aten.convolution_backward"
            or not outputs
            or outputs[0].fake_device.type != "cuda"
        ):
            return False
        self.uncertain[convolutions.BASIS] = convolutions.SHARE
        gradient = args[0]
        dims = [dim for dim in range(gradient.dim()) if dim != 1]
        convolutions.note_backward(
            self._log, args, outputs, lambda bias: self._sum("aten.sum", (gradient, dims), [bias])
        )
        return True

    def _convolution(self, args: Any, kwargs: Any, outputs: list[Any]) -> None:
        if outputs[0].fake_device.type == "cuda":
            self.uncertain[convolutions.BASIS] = convolutions.SHARE
            convolutions.note_forward(self._log, args, outputs[0])

    def _softmax_backward(self, args: Any, kwargs: Any, outputs: list[Any]) -> None:
        """The gradient times the result (softmax_backward_cuda_out in cuda/SoftMax.cu; recording of
        ddpm).
        """
        if outputs and outputs[0].fake_device.type == "cuda":
            self._log.scratch(args[0].nbytes)

    def _ctc_backward(self, args: Any, kwargs: Any, outputs: list[Any]) -> None:
        """The betas, as large as the alphas, and temporaries (recording of ctc: 0.2% more)."""
        if outputs[0].fake_device.type == "cuda":
            ctc_loss.note_backward(self._log, args[1], args[6])

    def _multinomial(self, args: Any, kwargs: Any, outputs: list[Any]) -> None:
        """Draws that the probabilities are divided by (native/Distributions.cpp; ``rlhf_ppo``)."""
        if outputs and outputs[0].fake_device.type == "cuda":
            self._log.scratch(args[0].nbytes)

    def _recurrent(self, args: Any, fake_mode: Any) -> Any:
        states = recurrent.dropout_states(args, self._card.processors)
        if states and not self._has_dropout_states:
            self._has_dropout_states = True
            self._log.allocate(states)
        return recurrent.forward(args, fake_mode, self._log)

    def on_device(self, operator: Operator, outputs: list[Any]) -> list[Any]:
        """The results that are asked of the device: seeds of a fused attention stay on the host.

        attention.cu (_efficient_attention_forward): on the device only while a graph is captured;
        cuDNN's are on it.
        """
        if operator.name in _SEEDS_ON_HOST:
            return [
                tensor for tensor in outputs if tensor.numel() > 2 or tensor.is_floating_point()
            ]
        return outputs

    def own_result(self, operator: Operator, args: Any, fake_mode: Any) -> Callable[[], Any] | None:
        """What makes an operator's results where PyTorch does not know their shapes; None where
        it does.
        """
        if operator.name == "aten._cudnn_rnn":
            self.uncertain[recurrent.BASIS] = recurrent.SHARE
            return lambda: self._recurrent(args, fake_mode)
        if operator.name == "aten._cudnn_rnn_backward":
            return lambda: recurrent.backward(args, fake_mode, self._log)
        if operator.name == "aten._pack_padded_sequence":
            return lambda: recurrent.packed_result(args, fake_mode, self._log)
        if convolutions.is_with_channels_last(operator.name, args):
            return lambda: convolutions.results_with_channels_last(operator, args, fake_mode)
        if enlarged_images.has_channels_last(operator.name, args):
            return lambda: convolutions.results_with_channels_last(operator, args, fake_mode)
        return gpu_only_result(operator.name, args, fake_mode)

    def after(self, operator: Operator, args: Any, kwargs: Any, outputs: list[Any]) -> None:
        """What is asked for after an operator's results."""
        name = operator.name
        if factorizations.is_factorization(name):
            self._factorization(name, args, outputs)
        held = [
            cast_bytes(name, args, outputs),
            enlarged_images.copied_gradient(name, args),
            *copied_bytes(name, args, outputs),
            *scratch_bytes(name, args, kwargs, outputs),
        ]
        rows = [self._log.allocate(size) for size in held if size]
        self._run_rule(name, args, kwargs, outputs)
        for row in rows:
            self._log.free(row)

    def _run_rule(self, name: str, args: Any, kwargs: Any, outputs: list[Any]) -> None:
        if name in _PRODUCTS:
            self._product(name, args, outputs)
        elif name in _SUMS:
            self._sum(name, args, outputs)
        else:
            rule = self._rules.get(name)
            if rule is not None:
                rule(args, kwargs, outputs)

    def _product(self, name: str, args: Any, outputs: list[Any]) -> None:
        """cuBLAS' workspace, once a handle and stream (aten/src/ATen/cuda/CublasHandlePool.cpp).

        Each thread has a handle of its own. Recordings: 32 MiB on Hopper for each thread, and 1 MiB
            with a bias.
        """
        if not outputs or outputs[0].fake_device.type != "cuda":
            return
        self._take_blas_handle()
        place = threading.get_ident(), self._log.queue
        if name == "aten.addmm" and args[0].dim() == 1 and place not in self._lt_handles:
            self._lt_handles.add(place)
            self._log.allocate(_LT_WORKSPACE)

    def _take_blas_handle(self) -> None:
        place = threading.get_ident(), self._log.queue
        if place not in self._handles:
            self._handles.add(place)
            self._log.allocate(self._blas_workspace())

    def _factorization(self, name: str, args: Any, outputs: list[Any]) -> None:
        self.uncertain[factorizations.BASIS] = factorizations.SHARE
        if not outputs or outputs[0].fake_device.type != "cuda":
            return
        if factorizations.works_with_cublas(name, args):
            self._take_blas_handle()
        factorizations.note_solution(self._log, name, args, outputs)

    def _blas_workspace(self) -> int:
        """By the card (getChosenWorkspaceSize: 4096 KiB x 8 on Hopper, else 4096 KiB x 2 and 16
        KiB x 8).
        """
        return 32 * MIB if self._card.capability[0] >= 9 else 8 * MIB + 128 * 1024

    def _sum(self, name: str, args: Any, outputs: list[Any]) -> None:
        tensor = args[0]
        if (
            not outputs
            or not isinstance(tensor, torch.Tensor)
            or not tensor.numel()
            or not outputs[0].numel()
        ):
            return
        if outputs[0].fake_device.type != "cuda":
            return
        results = outputs[0].numel()
        size_each = 4 if tensor.is_floating_point() and tensor.element_size() < 8 else 8
        if name in _MOMENTS:
            size_each = 16  # WelfordData: mean, sum of squares, count
        elif name in _POSITIONS:
            size_each = 16
        reduction = Reduction(
            outputs=results,
            inputs=tensor.numel() // results,
            is_inner=_is_inner(tensor, args),
            bytes_each=size_each,
            processors=self._card.processors,
        )
        buffer, semaphores = reduction.buffers()
        if buffer:
            row = self._log.allocate(buffer)
            self._log.scratch(semaphores)
            self._log.free(row)

    def _efficient_backward(self, args: Any, kwargs: Any, outputs: list[Any]) -> None:
        """Of the memory-efficient backward: delta, and sums of the query's gradient.

        aten/src/ATen/native/transformers/cuda/attention_backward.cu (delta; its product is in
        float32) and mem_eff_attention/kernel_backward.h (workspace_size: blocks of 64 x 64 numbers,
        with 16 bytes each).
        """
        log, query = self._log, args[1]
        batch, heads, length, width = query.shape
        delta = batch * heads * length * 4
        casts = (
            [log.allocate(query.numel() * 4) for _ in range(2)] if query.element_size() < 4 else []
        )
        product = log.allocate(query.numel() * 4)
        for row in casts:
            log.free(row)
        summed = log.allocate(delta)
        row_sums = log.allocate(delta)
        log.free(summed)
        log.free(product)
        blocks = math.ceil(length / 64) * math.ceil(width / 64)
        workspace = log.allocate(batch * heads * blocks * (64 * 64 * 4 + 16))
        log.free(row_sums)
        log.free(workspace)

    def _flash_backward(self, args: Any, kwargs: Any, outputs: list[Any]) -> None:
        """Of flash's backward: the sums of the query's gradient in float32 and the rows' sums.

        aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp (mha_bwd): lengths are
        rounded to 128, widths to 32.
        """
        log, query, key = self._log, args[1], args[2]
        batch, heads, length, width = query.shape
        rounded, wide = -(-length // 128) * 128, -(-width // 32) * 32
        rows = [
            log.allocate(batch * heads * rounded * 4),
            log.allocate(batch * rounded * heads * wide * 4),
        ]
        if key.shape[1] != heads:  # grouped queries: gradients of every query's own head first
            size = batch * key.shape[2] * heads * width * key.element_size()
            rows += [log.allocate(size), log.allocate(size)]
        for row in rows:
            log.free(row)

    def _cudnn_attention(self, args: Any, kwargs: Any, outputs: list[Any]) -> None:
        """A small workspace (recording of amp: 256 bytes)."""
        self._log.scratch(256)

    def _cudnn_attention_backward(self, args: Any, kwargs: Any, outputs: list[Any]) -> None:
        """The query's gradient in float32, the rows' sums and 256 bytes (recording of amp:
        8,519,936 bytes).
        """
        query = args[1]
        batch, heads, length, width = query.shape
        self._log.scratch(batch * heads * length * (width + 1) * 4 + 256)


def _is_inner(tensor: Any, args: Any) -> bool:
    """Whether a reduction's numbers lie side by side in memory."""
    reduced = _reduced_dimensions(tensor, args)
    if reduced is None:
        return True
    long_dims = [dim for dim in range(tensor.dim()) if tensor.shape[dim] > 1]
    inner_strides = [tensor.stride(dim) for dim in long_dims if dim in reduced]
    outer_strides = [tensor.stride(dim) for dim in long_dims if dim not in reduced]
    if not outer_strides:
        return True
    return bool(inner_strides) and min(inner_strides) < min(outer_strides)


def _reduced_dimensions(tensor: Any, args: Any) -> set[int] | None:
    """The dimensions that an operator reduces; None: all."""
    dims = args[1] if len(args) > 1 else None
    if isinstance(dims, int):
        dims = [dims]
    if not isinstance(dims, (list, tuple)) or dims == []:
        return None
    if not all(isinstance(dim, int) for dim in dims):
        return None
    return {dim % max(1, tensor.dim()) for dim in dims}


def is_called_by_autograd() -> bool:
    """Whether autograd's own thread runs an operator without any Python function in between."""
    frame = sys._getframe(1)
    while frame is not None and is_of_prediction(frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    while frame is not None and frame.f_code.co_filename.endswith(
        ("_compile.py", "eval_frame.py", "_stats.py")
    ):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is None
