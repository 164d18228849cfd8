"""Recomputation and offload: modules whose activations are made again, or wait in host memory,
for the backward.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_SMALLEST_OFFLOADED_BYTES = 1024**2
_MARK = "_vramlens_plain_forward"


@dataclass(frozen=True, slots=True)
class Unit:
    """A module that can be checkpointed by itself.

    Attributes:
        name: as ``named_modules`` names it.
        saved_bytes: what its forward keeps for the backward, parameters not counted; 0 until
            measured.
    """

    name: str
    module: Any
    saved_bytes: int = 0


def units_of(model: torch.nn.Module) -> list[Unit]:
    """The modules worth checkpointing: the blocks of a model's stacks, else its children that
    have several layers.
    """
    children = _children_with_layers(model)
    units = children if isinstance(model, torch.nn.Sequential) else []
    units = units or list(_blocks_of_stacks(model)) or children
    return [unit for unit in units if not counts_in_forward(unit.module)]


def _children_with_layers(module: torch.nn.Module, prefix: str = "") -> list[Unit]:
    return [
        Unit(f"{prefix}{name}", child)
        for name, child in module.named_children()
        if any(True for _ in child.children())
    ]


def _blocks_of_stacks(module: torch.nn.Module, prefix: str = "") -> Iterator[Unit]:
    for name, child in module.named_children():
        path = f"{prefix}{name}."
        is_list = isinstance(child, torch.nn.ModuleList)
        if is_list or (isinstance(child, torch.nn.Sequential) and len(child) > 1):
            yield from _children_with_layers(child, path)
        else:
            yield from _blocks_of_stacks(child, path)


def counts_in_forward(module: torch.nn.Module) -> bool:
    """Whether a recomputation would count the batch a second time: cumulative averages, which
    have no momentum.
    """
    return any(norm.momentum is None for norm in _counting_norms(module))


def _counting_norms(module: torch.nn.Module) -> list[Any]:
    kind = torch.nn.modules.batchnorm._NormBase
    return [
        m for m in module.modules() if isinstance(m, kind) and m.track_running_stats and m.training
    ]


@contextlib.contextmanager
def _not_counting(module: torch.nn.Module) -> Iterator[None]:
    """Keeps running statistics as they are while a block is made again: the first time has
    counted the batch.
    """
    norms = _counting_norms(module)
    before = [
        (norm, norm.momentum, None if (n := norm.num_batches_tracked) is None else n.clone())
        for norm in norms
    ]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum, count in before:
            norm.momentum = momentum
            if count is not None:
                norm.num_batches_tracked.copy_(count)


def is_compiled(model: Any) -> bool:
    """Whether it went through torch.compile."""
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    return hasattr(model, "_orig_mod") or any(
        getattr(m, "_compiled_call_impl", None) is not None for m in modules
    )


def checkpoint_module(module: torch.nn.Module) -> None:
    """Has a module's activations made again in the backward, with the same random numbers; names
    stay as they are.
    """
    from torch.utils.checkpoint import checkpoint

    if hasattr(module, _MARK):
        return
    plain = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return plain(*args, **kwargs)
        return checkpoint(once, *args, use_reentrant=False, **kwargs)

    def once(*args: Any, **kwargs: Any) -> Any:
        if torch._C._current_graph_task_id() == -1:
            return plain(*args, **kwargs)
        with _not_counting(module):  # inside of the backward
            return plain(*args, **kwargs)

    object.__setattr__(module, _MARK, plain)
    module.forward = forward


def uncheckpoint_module(module: torch.nn.Module) -> None:
    """Undoes ``checkpoint_module``."""
    if hasattr(module, _MARK):
        module.__dict__.pop("forward", None)
        plain = module.__dict__.pop(_MARK)
        if getattr(plain, "__func__", None) is not type(module).forward:
            module.forward = plain  # somebody had replaced it before


@contextlib.contextmanager
def offloaded(
    parameters: Sequence[torch.Tensor], smallest_bytes: int = _SMALLEST_OFFLOADED_BYTES
) -> Iterator[None]:
    """Has what a forward keeps for the backward wait in pinned host memory; parameters and small
    tensors stay.
    """
    own_storages = {parameter.untyped_storage().data_ptr() for parameter in parameters}

    def pack(tensor: torch.Tensor) -> Any:
        size = tensor.numel() * tensor.element_size()
        if (
            not tensor.is_cuda
            or size < smallest_bytes
            or tensor.untyped_storage().data_ptr() in own_storages
        ):
            return tensor.detach()  # itself would be a cycle with the graph that no collector sees
        copy = torch.empty(
            tensor.size(), dtype=tensor.dtype, layout=tensor.layout, pin_memory=not tensor.is_sparse
        )
        copy.copy_(tensor)
        return tensor.device, copy

    def unpack(packed: Any) -> torch.Tensor:
        if isinstance(packed, tuple):
            device, copy = packed
            return copy.to(device, non_blocking=True)  # type: ignore[no-any-return]
        return packed  # type: ignore[no-any-return]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


@contextlib.contextmanager
def saved_bytes(model: torch.nn.Module, units: Sequence[Unit]) -> Iterator[dict[str, int]]:
    """Counts, by unit, what the forwards inside of the block keep for the backward; each storage
    once.
    """
    counted: dict[str, int] = {unit.name: 0 for unit in units}
    inside: list[str] = []
    counted_storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    handles = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if inside:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in counted_storages:
                counted_storages.add(storage.data_ptr())
                counted[inside[-1]] += storage.nbytes()
        return tensor.detach()  # itself would be a cycle with the graph that no collector sees

    for unit in units:
        handles.append(
            unit.module.register_forward_pre_hook(lambda *_, name=unit.name: inside.append(name))
        )
        handles.append(
            unit.module.register_forward_hook(lambda *_: inside.pop() and None, always_call=True)
        )
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield counted
    finally:
        for handle in handles:
            handle.remove()
