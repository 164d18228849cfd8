"""Placement: a model that does not fit one GPU, its blocks over several, the activations counted
with the weights.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Any

from vramlens.argument_types import flag, module, takes
from vramlens.errors import UsageError
from vramlens.recovery.planning.shape_run import ShapeRun, run_with_shapes, weights_of
from vramlens.units import format_size, size_in_bytes

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_WORKSPACE_BYTES = 33 << 20
"""Of cuBLAS and cuBLASLt on a GPU, as PyTorch asks for them on Hopper; older GPUs take 8 MiB."""


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of the model that goes to one device as a whole.

    Attributes:
        name: as ``named_modules`` names it; of a parameter that belongs to no smaller module, the
            parameter's.
        weight_bytes: its parameters and buffers, those that it shares with an earlier one not
            counted.
        kept_bytes: what it makes that is still needed after the next block began: keys and values,
            logits.
        output_bytes: what of that the model returns.
        activation_bytes: the most that it needs besides at once: its inputs, and what it makes
            until the next begins.
        number: its place in the order in which they run, from 0.
        beside: the first block that has to be on the same device, for what they share; else its own
            name.
    """

    name: str
    weight_bytes: int
    kept_bytes: int
    output_bytes: int
    activation_bytes: int
    number: int
    beside: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each block goes; printed it says so in words.

    Attributes:
        device_map: block -> device, as accelerate takes it, in the order in which they run.
        used_bytes: by device: its weights, the most that its blocks need besides, and on a GPU
            cuBLAS's workspace.
    """

    model: Any
    device_map: dict[str, Any]
    blocks: tuple[Block, ...]
    used_bytes: dict[Any, int]
    limits_bytes: dict[Any, int]

    def __str__(self) -> str:
        lines = [
            f"{len(self.blocks)} blocks on {len(self.used_bytes)} devices, activations counted:"
        ]
        for device, used in self.used_bytes.items():
            lines.append(
                f"  {device}: {format_size(used)} of {format_size(self.limits_bytes[device])} "
                f" {self._names(device)}"
            )
        return "\n".join([*lines, "next: output = placement.model(batch)"])

    def __repr__(self) -> str:
        return str(self)

    def _names(self, device: Any) -> str:
        """The blocks of a device: those that follow each other by the first and the last."""
        runs: list[list[str]] = []
        before = None
        for name, where in self.device_map.items():
            if where == device:
                if before != device:
                    runs.append([])
                runs[-1].append(name)
            before = where
        return (
            ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
            or "nothing"
        )


@takes(model=module, dispatch=flag)
def place(
    model: torch.nn.Module,
    batch: Any,
    *,
    memory: dict[Any, int | str] | None = None,
    dispatch: bool = True,
) -> Placement:
    """The model with its blocks spread over the GPUs, so that the fullest one is as empty as can
    be.

    Weights are counted exactly; activations are those of one forward of ``batch`` without
    gradients, run with shapes
    only: nothing has to fit anywhere first, no weight is copied, no GPU is needed to plan. Blocks
    stay in the order in which they run, but for those that share weights, or whose results meet
    outside of any block: they go to the device of the first of them.

    Args:
        batch: what the model is called with: a tensor, a dict of keyword arguments, or a tuple of
            arguments.
        memory: device -> bytes, or as 22GiB; by default what is free on every GPU.
        dispatch: put it there through accelerate's ``dispatch_model``; False: only say where.

    Raises:
        UsageError: no GPU, it does not fit even so, its forward cannot be run with shapes only, or
            accelerate is not installed.
    """
    limits = _limits(memory)
    blocks, blocks_of = _spread(model, batch, limits)
    output = sum(block.output_bytes for block in blocks)
    where = {
        block.name: device for device, blocks_here in blocks_of.items() for block in blocks_here
    }
    used = {
        device: needed_bytes(blocks_here, output) + _workspace(device) if blocks_here else 0
        for device, blocks_here in blocks_of.items()
    }
    device_map = {block.name: where[block.name] for block in blocks}
    if dispatch:
        _dispatch(model, device_map)
    return Placement(
        model=model,
        device_map=device_map,
        blocks=tuple(blocks),
        used_bytes=used,
        limits_bytes=limits,
    )


def _spread(
    model: torch.nn.Module, batch: Any, limits: dict[Any, int]
) -> tuple[list[Block], dict[Any, list[Block]]]:
    """All blocks, and those of each device; UsageError where there is no room for them."""
    rooms = [size - _workspace(device) for device, size in limits.items()]
    for deep in (False, True):  # smaller blocks only where it does not fit otherwise
        blocks = measured_blocks(model, batch, deep=deep)
        together: dict[str, list[Block]] = {}
        for block in blocks:
            together.setdefault(block.beside, []).append(block)
        pieces = list(together.values())
        shares = balanced(pieces, rooms)
        if shares is not None:
            break
    else:
        raise _no_room(pieces, limits)
    return blocks, {
        device: list(chain.from_iterable(pieces[start:stop]))
        for device, (start, stop) in zip(limits, shares, strict=True)
    }


def _workspace(device: Any) -> int:
    return 0 if str(device).startswith("cpu") else _WORKSPACE_BYTES


def needed_bytes(blocks: Sequence[Block], output_bytes: int) -> int:
    """What a device with these blocks holds at most in a forward, whose whole output has so many
    bytes.

    What its blocks keep grows as they run; the output comes back to the device of the first, where
    the inputs are.
    """
    kept_bytes = peak_bytes = 0
    for block in sorted(blocks, key=lambda block: block.number):
        kept_bytes += block.kept_bytes
        peak_bytes = max(peak_bytes, kept_bytes + block.activation_bytes)
    if any(block.number == 0 for block in blocks):
        peak_bytes = max(
            peak_bytes, kept_bytes + output_bytes - sum(block.output_bytes for block in blocks)
        )
    return peak_bytes + sum(block.weight_bytes for block in blocks)


def _no_room(pieces: list[list[Block]], limits: dict[Any, int]) -> UsageError:
    total = sum(block.weight_bytes for piece in pieces for block in piece)
    largest = max(pieces, key=lambda piece: needed_bytes(piece, 0))
    together = (
        f"{len(largest)} blocks that share tensors, {largest[0].name} to {largest[-1].name}, need"
    )
    return UsageError(
        f"place: {format_size(total)} of weights and their activations do not fit"
        f" {format_size(sum(limits.values()))} on {len(limits)} devices"
        f" ({f'{largest[0].name} needs' if len(largest) == 1 else together}"
        f" {format_size(needed_bytes(largest, 0))} on one, cuBLAS {format_size(_WORKSPACE_BYTES)}"
        " on each GPU): a smaller batch, fewer bits, or more devices"
    )


def _dispatch(model: Any, device_map: dict[str, Any]) -> None:
    """Moves the blocks, and has inputs follow them; what belongs to no module accelerate leaves
    where it was.
    """
    if find_spec("accelerate") is None:
        raise UsageError(
            "place: needs accelerate to move inputs between devices: pip install accelerate"
        )
    accelerate = importlib.import_module("accelerate")
    first = next(iter(device_map.values()))
    skipped = getattr(model, "_skip_keys_device_placement", None)
    accelerate.dispatch_model(
        model, device_map=device_map, main_device=first, skip_keys=skipped, force_hooks=True
    )
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, device in device_map.items():
        if name not in modules:
            importlib.import_module("accelerate.utils").set_module_tensor_to_device(
                model, name, device
            )


def balanced(
    pieces: Sequence[Sequence[Block]], limits: Sequence[int]
) -> list[tuple[int, int]] | None:
    """The ranges of pieces for each device, in order, whose fullest device is filled to the least
    share; None: no way.

    A piece is a block, or blocks that have to be together. Found by bisection over the share: for a
    share it is enough to fill each device as far as it goes, as a device needs no less with more
    blocks.
    """
    output = sum(block.output_bytes for piece in pieces for block in piece)

    def fill(share: float) -> list[tuple[int, int]] | None:
        ranges, start = [], 0
        for limit in limits:
            stop, blocks_here = start, list[Block]()
            while (
                stop < len(pieces)
                and needed_bytes([*blocks_here, *pieces[stop]], output) <= limit * share
            ):
                blocks_here += pieces[stop]
                stop += 1
            ranges.append((start, stop))
            start = stop
        return ranges if start == len(pieces) else None

    if fill(1.0) is None:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if fill(middle) is not None else (middle, high)
    return fill(high)


def measured_blocks(model: torch.nn.Module, batch: Any, *, deep: bool = False) -> list[Block]:
    """The model's blocks in the order in which they run, with bytes of weights and activations.

    Args:
        deep: cut blocks that hold lists of modules themselves.
    """
    run, named = ShapeRun(), dict(_leaf_blocks(model, deep))
    try:
        run_with_shapes(model, named, batch, run)
    except Exception as error:
        problem = (str(error).strip().splitlines() or [""])[0]
        raise UsageError(
            f"place: {type(model).__name__} cannot run with shapes only, {run.where()}:"
            f" {type(error).__name__}: {problem} (if it runs on this batch, it needs values that it"
            " computed, or a kernel of its own: call accelerate's dispatch_model with a device_map"
            " of your own)"
        ) from error
    return _blocks(run, named)


def _blocks(run: ShapeRun, named: dict[str, Any]) -> list[Block]:
    """What a run found; blocks that did not run come last."""
    order = list(dict.fromkeys([*run.names, *named]))
    weights, owner = dict.fromkeys(order, 0), dict[int, str]()
    for name in order:
        for tensor in weights_of(named[name]):
            if id(tensor) not in owner:
                owner[id(tensor)] = name
                weights[name] += tensor.numel() * tensor.element_size()
            run.ties.append((owner[id(tensor)], name))
    kept_bytes, output, peak_bytes = (dict.fromkeys(order, 0) for _ in range(3))
    for epoch, name in enumerate(run.names or order[:1]):
        kept_bytes[name] += run.kept[epoch]
        output[name] += run.output[epoch]
        peak_bytes[name] = max(
            peak_bytes[name], run.inputs[epoch] + run.most[epoch] - run.kept[epoch]
        )
    beside = _firsts(order, run.ties)
    return [
        Block(
            name=name,
            weight_bytes=weights[name],
            kept_bytes=kept_bytes[name],
            output_bytes=output[name],
            activation_bytes=peak_bytes[name],
            number=number,
            beside=beside[name],
        )
        for number, name in enumerate(order)
    ]


def _firsts(names: list[str], ties: list[tuple[str, str]]) -> dict[str, str]:
    """For each name the first that it is tied to, directly or through others."""
    groups = {name: [name] for name in names}
    for name, other in ties:
        if groups[name] is not groups[other]:
            groups[name] += groups[other]
            groups.update(dict.fromkeys(groups[other], groups[name]))
    rank = {name: number for number, name in enumerate(names)}
    return {name: min(groups[name], key=rank.__getitem__) for name in names}


def _leaf_blocks(model: Any, deep: bool, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Modules that stay whole: the members of lists, and what holds no list; and parameters of
    what does not.
    """
    lists = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)
    searched = lists if deep else lists[:2]
    for name, tensor in [
        *model.named_parameters(recurse=False),
        *model.named_buffers(recurse=False),
    ]:
        yield f"{prefix}{name}", tensor
    is_list = isinstance(model, lists) and not deep  # its members stay whole
    for name, child in model.named_children():
        holds_list = any(isinstance(inner, searched) for inner in child.modules())
        is_cut = (holds_list or isinstance(child, lists)) and next(
            child.children(), None
        ) is not None
        if is_cut and not is_list:
            yield from _leaf_blocks(child, deep, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child


def _limits(memory: dict[Any, int | str] | None) -> dict[Any, int]:
    if memory is not None:
        return {where: size_in_bytes(size) for where, size in memory.items()}
    count = torch.cuda.device_count()
    if not count:
        raise UsageError(
            "place: there is no GPU here: pass memory={0: '22GiB', 1: '22GiB'} to plan for some"
        )
    return {index: int(torch.cuda.mem_get_info(index)[0] * 0.95) for index in range(count)}
