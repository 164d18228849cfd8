"""Placement: a model that does not fit one GPU, its blocks over several, the activations counted with the weights."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vramlens.errors import UsageError
from vramlens.units import format_size, parse_size

if TYPE_CHECKING:
    import torch
else:
    from vramlens.recovery.late_torch import torch


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of the model that goes to one device as a whole.

    Attributes:
        name: as ``named_modules`` names it; of a parameter that belongs to no smaller module, the parameter's.
        weight_bytes: its parameters and buffers, those that it shares with an earlier one not counted.
        activation_bytes: the most that its forward allocates, and its output.
    """

    name: str
    weight_bytes: int
    activation_bytes: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each block goes; printed it says so in words.

    Attributes:
        device_map: block -> device, as accelerate takes it.
        used_bytes: by device: its weights and the most that the activations of one of its blocks take.
    """

    model: Any
    device_map: dict[str, Any]
    blocks: tuple[Block, ...]
    used_bytes: dict[Any, int]
    limits_bytes: dict[Any, int]

    def __str__(self) -> str:
        lines = [f"{len(self.blocks)} blocks on {len(self.used_bytes)} devices, activations counted:"]
        for device, used in self.used_bytes.items():
            names = [name for name, where in self.device_map.items() if where == device]
            limit = self.limits_bytes[device]
            lines.append(
                f"  {device}: {format_size(used)} of {format_size(limit)}  {names[0]} to {names[-1]}"
                if names
                else f"  {device}: nothing"
            )
        return "\n".join([*lines, "next: output = placement.model(batch)"])

    def __repr__(self) -> str:
        return str(self)


def place(
    model: torch.nn.Module, batch: Any, *, memory: dict[Any, int | str] | None = None, dispatch: bool = True
) -> Placement:
    """The model with its blocks spread over the GPUs, so that the fullest one is as empty as can be.

    Weights are counted exactly; activations are those of one forward of ``batch`` without gradients, run with shapes
    only (on the meta device), so nothing has to fit anywhere first. Blocks stay in the order in which they run.

    Args:
        batch: what the model is called with: a tensor, a dict of keyword arguments, or a tuple of arguments.
        memory: device -> bytes, or as 22GiB; by default what is free on every GPU.
        dispatch: put it there through accelerate's ``dispatch_model``; False: only say where.

    Raises:
        UsageError: no GPU, it does not fit even so, or accelerate is not installed.
    """
    limits = _limits(memory)
    blocks = measured_blocks(model, batch)
    shares = balanced([block.weight_bytes for block in blocks], [block.activation_bytes for block in blocks],
                      list(limits.values()))  # fmt: skip
    if shares is None:
        total = sum(block.weight_bytes for block in blocks)
        room = format_size(sum(limits.values()))
        raise UsageError(
            f"place: {format_size(total)} of weights and their activations do not fit {room}"
            f" on {len(limits)} devices: a smaller batch, fewer bits, or more devices"
        )
    device_map: dict[str, Any] = {}
    used: dict[Any, int] = {}
    for (device, _), (start, stop) in zip(limits.items(), shares, strict=True):
        device_map.update({block.name: device for block in blocks[start:stop]})
        mine = blocks[start:stop]
        used[device] = sum(b.weight_bytes for b in mine) + max((b.activation_bytes for b in mine), default=0)
    placed = model
    if dispatch:
        if find_spec("accelerate") is None:
            raise UsageError("place: needs accelerate to move inputs between devices: pip install accelerate")
        placed = importlib.import_module("accelerate").dispatch_model(model, device_map=device_map)
    return Placement(placed, device_map, tuple(blocks), used, limits)


def balanced(weights: Sequence[int], activations: Sequence[int], limits: Sequence[int]) -> list[tuple[int, int]] | None:
    """The ranges of blocks for each device, in order, whose fullest device is filled to the least share; None: no way.

    A device holds its blocks' weights and the activations of the block that needs most. Found by bisection over the
    share: for a share it is enough to fill each device as far as it goes.
    """

    def fill(share: float) -> list[tuple[int, int]] | None:
        ranges, start = [], 0
        for limit in limits:
            stop, weight, most = start, 0, 0
            while stop < len(weights):
                wider = max(most, activations[stop])
                if weight + weights[stop] + wider > limit * share:
                    break
                weight, most, stop = weight + weights[stop], wider, stop + 1
            ranges.append((start, stop))
            start = stop
        return ranges if start == len(weights) else None

    if fill(1.0) is None:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if fill(middle) is not None else (middle, high)
    return fill(high)


def measured_blocks(model: torch.nn.Module, batch: Any) -> list[Block]:
    """The model's blocks in the order in which they run, with bytes of weights and activations."""
    import copy

    from vramlens.recovery.meters import CountingMeter

    named = _leaf_blocks(model)
    seen: set[int] = set()
    weights: dict[str, int] = {}
    for name, module in named:
        size = 0
        tensors = [module] if isinstance(module, torch.Tensor) else [*module.parameters(), *module.buffers()]
        for tensor in tensors:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                size += tensor.numel() * tensor.element_size()
        weights[name] = size
    with torch.device("meta"):
        shapes = copy.deepcopy(model).to("meta")
    meter = CountingMeter(meta=True)
    order: list[str] = []
    peaks: dict[str, int] = {}
    begun: list[int] = []
    modules = dict(shapes.named_modules())

    def begins(*_: Any) -> None:
        meter.restart()
        begun.append(meter.allocated_bytes())

    def ends(name: str) -> None:
        peaks[name] = max(peaks.get(name, 0), meter.peak_bytes() - begun.pop())
        if name not in order:
            order.append(name)

    for name, module in named:
        if not isinstance(module, torch.Tensor):
            modules[name].register_forward_pre_hook(begins)
            modules[name].register_forward_hook(lambda *_, name=name: ends(name))
    with torch.no_grad(), meter:
        _call(shapes, _on_meta(batch))
    late = [name for name, _ in named if name not in order]
    order = [name for name, module in named if isinstance(module, torch.Tensor)] + order
    order += [name for name in late if name not in order]
    return [Block(name, weights[name], peaks.get(name, 0)) for name in order]


def _leaf_blocks(model: torch.nn.Module, prefix: str = "") -> list[tuple[str, Any]]:
    """Modules that stay whole: the members of lists, and what is no container of others with parameters."""
    found: list[tuple[str, Any]] = []
    for name, parameter in [*model.named_parameters(recurse=False), *model.named_buffers(recurse=False)]:
        found.append((f"{prefix}{name}", parameter))
    for name, child in model.named_children():
        path = f"{prefix}{name}"
        container = isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict))
        holds_list = any(isinstance(inner, torch.nn.ModuleList) for inner in child.modules())
        if container or holds_list:
            inside = child.named_children() if container else ()
            if container:
                for key, block in inside:
                    if any(isinstance(inner, torch.nn.ModuleList) for inner in block.modules()):
                        found += _leaf_blocks(block, f"{path}.{key}.")
                    else:
                        found.append((f"{path}.{key}", block))
            else:
                found += _leaf_blocks(child, f"{path}.")
        else:
            found.append((path, child))
    return found


def _limits(memory: dict[Any, int | str] | None) -> dict[Any, int]:
    if memory is not None:
        return {where: parse_size(size) if isinstance(size, str) else int(size) for where, size in memory.items()}
    count = torch.cuda.device_count()
    if not count:
        raise UsageError("place: there is no GPU here: say memory={0: '22GiB', 1: '22GiB'} to plan for some")
    return {index: int(torch.cuda.mem_get_info(index)[0] * 0.95) for index in range(count)}


def _on_meta(value: Any) -> Any:
    from torch.utils._pytree import tree_map

    return tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf, value)


def _call(model: Any, batch: Any) -> Any:
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, (list, tuple)) else model(batch)
