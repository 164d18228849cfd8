"""Copies that CUDA's kernels make of inputs whose numbers do not lie one after the other.

aten/src/ATen/native/cuda: SoftMax.cu (host_softmax, host_softmax_backward), layer_norm_kernel.cu,
Embedding.cu (embedding_dense_backward_cuda) and ScanUtils.cuh begin with ``contiguous()``. The
recording of ``rlhf_ppo`` on an H100 shows the copy of logits without their last word.
"""

from __future__ import annotations

from typing import Any

_PLACES = {
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


def copied_bytes(name: str, args: Any, outputs: list[Any]) -> list[int]:
    """Bytes of the copies that an operator makes of its inputs."""
    places = _PLACES.get(name, ())
    if not places or not outputs or outputs[0].fake_device.type != "cuda":
        return []
    return [args[place].nbytes for place in places if not args[place].is_contiguous()]
