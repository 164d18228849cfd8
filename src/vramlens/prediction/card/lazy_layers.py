"""Layers that learn their shapes from the first batch (``torch.nn.LazyLinear`` and its like).

Their weights have no shape when a module moves to the device: PyTorch keeps their class and only
notes the device (torch/nn/parameter.py, UninitializedTensorMixin).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_DEVICE = "vramlens_device"


def put_lazy_layers(torch: Any, exchange: Callable[[Any, Any], None]) -> None:
    """Makes such weights appear on the device that they were moved to.

    Args:
        torch: the module; it is changed.
        exchange: swaps two tensors behind their objects.
    """
    lazy = torch.nn.parameter.UninitializedTensorMixin
    plain_materialize = lazy.materialize

    def exchange_or_note(first: Any, second: Any) -> None:
        if isinstance(first, lazy):
            first.__dict__[_DEVICE] = second.device
        else:
            exchange(first, second)

    def materialize(weight: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        moved_to = weight.__dict__.pop(_DEVICE, None)
        target = torch.device(device or moved_to or weight.data.device)
        if target.type != "cuda":
            plain_materialize(weight, shape, device, dtype)
            return
        numbers = torch.empty(shape, device=target, dtype=dtype or weight.data.dtype)
        exchange(weight, torch.nn.Parameter(numbers, requires_grad=weight.requires_grad))

    torch.utils.swap_tensors = exchange_or_note
    lazy.materialize = materialize
