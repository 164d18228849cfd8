"""Copies between devices, of which there is one: ``torch.nn.DataParallel`` and its like."""

from __future__ import annotations

from typing import Any


def put_copies_between_devices(torch: Any) -> None:
    """Makes scatters, gathers and broadcasts be copies to the one device; for good."""
    from torch.nn.parallel import _functions

    core: Any = torch._C
    # A build with CUDA would ask the driver for a stream to copy on.
    _functions._get_stream = lambda device: torch.cuda.current_stream()

    def scatter(tensor: Any, devices: Any, *options: Any) -> tuple[Any, ...]:
        return (tensor.to("cuda"),)

    def broadcast(tensor: Any, devices: Any, *options: Any) -> tuple[Any, ...]:
        return (tensor.to("cuda"),)

    def gather(tensors: Any, dim: int, target: Any = None, *options: Any) -> Any:
        gathered = tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim)
        return gathered.cpu() if target == -1 else gathered

    core._scatter, core._broadcast, core._gather = scatter, broadcast, gather
    core._broadcast_coalesced = lambda tensors, devices, size: [
        [tensor.to("cuda") for tensor in tensors]
    ]
