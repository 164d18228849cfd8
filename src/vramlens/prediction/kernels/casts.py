"""Copies of another type that a reduction or a running sum makes of its input first.

aten/src/ATen/native/ReduceOpsUtils.h (make_reduction_from_out_ty): the input is taken in the type
of the result, but for 16 bits summed in 32. ReduceOps.cpp (impl_func_cum_ops): running sums always.
The run of ``clip_retrieval`` on an H100 shows the 1.76 GiB of a comparison that is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_REDUCTIONS = {"aten.sum", "aten.nansum", "aten.mean", "aten.prod"}
_RUNNING = {"aten.cumsum", "aten.cumprod"}


def cast_bytes(name: str, args: Any, outputs: list[Any]) -> int:
    """Bytes of the copy that an operator makes of its input; 0 where it takes it as it is."""
    if name not in _REDUCTIONS and name not in _RUNNING:
        return 0
    if not outputs or outputs[0].fake_device.type != "cuda":
        return 0
    before, after = args[0].dtype, outputs[0].dtype
    is_widened = before in (torch.float16, torch.bfloat16) and after is torch.float32
    if before is after or (is_widened and name in _REDUCTIONS):
        return 0
    return int(args[0].numel() * after.itemsize)
