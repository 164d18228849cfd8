"""Results that torch.compile may never make: those of operators that it fuses into their readers.

Inductor joins pointwise operators, reductions and normalizations into one kernel, and makes again in
the backward what is cheap to make (torch/_inductor/scheduler.py; torch/_functorch/partitioners.py,
min_cut_rematerialization_partition). What a matrix product, a convolution, attention or an
optimizer reads has to be there, and so has what a compiled function returns. What is never made is
made again of what is there, which lives as long as it is read (``requests/compiled_requests.py``).

Not made again is what reads a tensor that an operator which is not fused has read before, such as
the sum of a residual branch (ban_recompute_used_far_apart): such a result is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramlens.prediction.kernels.kernel_requests import is_called_by_autograd
from vramlens.prediction.requests.request_log import RequestLog
from vramlens.prediction.tensors.operator_schema import Operator

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_ALSO_FUSED = {
    "aten._to_copy", "aten.native_layer_norm", "aten.native_layer_norm_backward", "aten._softmax",
    "aten._softmax_backward_data", "aten._log_softmax", "aten._log_softmax_backward_data",
    "aten.native_dropout", "aten.native_dropout_backward", "aten.clone", "aten.cat", "aten.sum",
    "aten.mean", "aten.var_mean", "aten.amax", "aten._fused_rms_norm", "aten.native_group_norm",
    "aten.native_group_norm_backward", "aten.nll_loss_backward", "aten.nll_loss_forward",
    "aten.nll_loss2d_forward", "aten.nll_loss2d_backward", "aten.mse_loss", "aten.mse_loss_backward",
    "aten.embedding", "aten.index", "aten.gather", "aten.constant_pad_nd", "aten.max", "aten.min",
    "aten.argmax", "aten.var", "aten.amin", "aten.any", "aten.all", "aten.prod", "aten.flip",
    "aten.linalg_vector_norm", "aten.stack", "aten.repeat", "aten.roll", "aten.select_backward",
    "aten.slice_backward", "aten.smooth_l1_loss", "aten.binary_cross_entropy",
}  # fmt: skip

_SAME_MEMORY = {"aten._unsafe_view"}
"""Views that autograd does not take for one."""


class FusedResults:
    """Which results of a compiled program may never be made."""

    def __init__(self, log: RequestLog) -> None:
        self._log = log
        self._depth = 0
        self._is_used = False
        self._read_unfused: set[int] = set()

    def begin(self) -> None:
        """A compiled function begins; its backward is compiled, too."""
        self._depth += 1
        self._is_used = True

    def end(self, results: list[Any]) -> None:
        """It returns these tensors."""
        self._depth -= 1
        self._need(results)

    def follow(self, operator: Operator, inputs: list[Any], outputs: list[Any]) -> None:
        """Notes which results an operator may leave unmade, and which inputs it needs."""
        if not self._is_used or operator.is_view or operator.name in _SAME_MEMORY:
            return
        if _is_fused(operator) and (self._depth > 0 or is_called_by_autograd()):
            self._follow_fused(inputs, outputs)
            return
        self._need(inputs)
        if self._depth > 0:
            self._note_read(inputs)

    def _follow_fused(self, inputs: list[Any], outputs: list[Any]) -> None:
        for tensor in outputs:
            self._log.may_vanish(tensor, inputs)
        if self._depth > 0 and self._is_far_from(inputs):
            self._need(outputs)

    def _is_far_from(self, inputs: list[Any]) -> bool:
        """Whether an operator that is not fused has read one of these tensors."""
        return any(self._log.row_of(tensor) in self._read_unfused for tensor in inputs)

    def _note_read(self, inputs: list[Any]) -> None:
        """Notes what an operator that is not fused reads, and all that this is fused from."""
        rows = [self._log.row_of(tensor) for tensor in inputs]
        while rows:
            row = rows.pop()
            if row is None or row in self._read_unfused:
                continue
            self._read_unfused.add(row)
            rows += self._log.fusible_sources(row)

    def _need(self, tensors: list[Any]) -> None:
        for tensor in tensors:
            self._log.must_exist(tensor)


def _is_fused(operator: Operator) -> bool:
    is_pointwise = torch.Tag.pointwise in operator.function.tags
    is_in_place = bool(operator.written)
    return not is_in_place and (is_pointwise or operator.name in _ALSO_FUSED)
