"""How far a forward pass is: which of the model's repeated blocks are done, and what those to come
keep, by module marks and the names of parameters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.remedies_in_use import uses_checkpoints
from vramlens.analyses.failure.first_step.after_blocks import bytes_after_blocks
from vramlens.analyses.failure.likeness.earlier_pass import most_by_earlier_passes
from vramlens.analyses.leaks.certainty import PATTERN
from vramlens.trace import NO_STACK, OutOfMemory, TensorKind

_BLOCK = re.compile(r"^(.*?(?:^|[._])(\d+))(?:\.|$)")
_SPARE = 0.9
_ALIKE = 1.1
"""How many times the smallest the largest of blocks keeps that are alike."""
_RECOMPUTED = 0.05
"""Of what a block asks for: it keeps less only where the backward pass is to compute it again."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the forward pass is.

    Attributes:
        blocks, done: of the model's repeated blocks, how many there are, and how many are done.
        path: the module path of the block that it has come to.
        low_bytes, high_bytes: of the activations still to come.
        alike_bytes: what the largest of the blocks that are done keeps, where all of the model are
            alike; None elsewhere.
    """

    blocks: int
    done: int
    path: str
    low_bytes: int
    high_bytes: int
    alike_bytes: int | None = None


def progress_of(
    view: Attribution,
    alive: NDArray[np.int64],
    lasts: NDArray[np.bool_],
    request: OutOfMemory,
) -> Progress | None:
    """How far the forward is; None where marks and names do not tell.

    Args:
        alive: the allocations alive at the failure.
        lasts: of each, whether it stays beyond the step.
    """
    blocks = _blocks_of_model(view)
    if len(blocks) < 2:
        return None
    block = _block_of(view, alive, blocks)
    block[lasts] = -1
    if not (block >= 0).any():
        return None
    sizes = view.device.allocations.requested_bytes[alive]
    bytes_by_block = _bytes_by_block(block, sizes)
    latest = max(bytes_by_block)
    own_blocks = [path for path in blocks if _root(path) == _root(blocks[latest])]
    done = [bytes_by_block.get(number, 0) for number in range(latest)]
    outside = int(sizes[(block < 0) & ~lasts].sum())
    place = own_blocks.index(blocks[latest])
    blocks_to_come = len(own_blocks) - place - 1
    if not any(done):
        like_this = bytes_by_block[latest] * 2 + request.size_bytes
        to_come = like_this * (blocks_to_come + 1) + outside
        like_earlier = most_by_earlier_passes(view, request.event)
        most_bytes = min(to_come, like_earlier or to_come)
        return Progress(len(own_blocks), 0, blocks[latest], 0, most_bytes)
    after_bytes = bytes_after_blocks(
        view,
        own_blocks,
        sizes[block == max(np.flatnonzero(done))],
        outside_bytes=outside,
        kept_bytes=sum(bytes_by_block.values()),
    )
    again_bytes = 0
    if uses_checkpoints(view):
        again_bytes = _computed_again(done, _asked_by_block(view, blocks, request.event))
    alike_bytes = _alike_bytes(blocks, latest, done)
    to_come = _most_of_blocks(done, blocks_to_come)
    if alike_bytes is not None:
        to_come = min(to_come, alike_bytes * (blocks_to_come + 1))
    return Progress(
        blocks=len(own_blocks),
        done=place,
        path=blocks[latest],
        low_bytes=0
        if _shrinks(view, alive[block == latest - 1], alive[block == latest])
        else _least_of_blocks(blocks, latest, min(filter(None, done))),
        high_bytes=to_come + request.size_bytes + max(after_bytes, again_bytes),
        alike_bytes=alike_bytes,
    )


def _asked_by_block(view: Attribution, blocks: Sequence[str], event: int) -> dict[int, int]:
    """What each block asked for in the step so far, given back or not."""
    rows = rows_of_step(view, event)
    sizes = view.device.allocations.requested_bytes[rows]
    return _bytes_by_block(_block_of(view, rows, blocks), sizes)


def _alike_bytes(blocks: Sequence[str], latest: int, done: Sequence[int]) -> int | None:
    """What the largest block keeps that is done, where those of the latest kind are alike and none
    of another kind is to come; None elsewhere.
    """
    kind = _kind(blocks[latest])
    sizes = [size for path, size in zip(blocks, done, strict=False) if size and _kind(path) == kind]
    to_come = [path for path in blocks[latest:] if _root(path) == _root(blocks[latest])]
    if len(sizes) < 2 or any(_kind(path) != kind for path in to_come):
        return None
    return max(sizes) if max(sizes) <= _ALIKE * min(sizes) else None


def _computed_again(done: Sequence[int], asked_by_block: dict[int, int]) -> int:
    """What the backward pass asks for to compute one block again, which kept little: checkpointing;
    0 where blocks keep what they compute.
    """
    asked_by_done_block = {
        number: asked_by_block.get(number, 0) for number, size in enumerate(done) if size
    }
    if any(done[number] > _RECOMPUTED * size for number, size in asked_by_done_block.items()):
        return 0
    return max(asked_by_done_block.values(), default=0)


def _least_of_blocks(blocks: Sequence[str], latest: int, smallest_bytes: int) -> int:
    """The least that the blocks to come keep: those of one kind are alike; those of another (deeper
    in a network for images) are as a rule smaller.
    """
    kind = _kind(blocks[latest])
    if _kind(blocks[latest - 1]) != kind:
        return 0
    alike = sum(_kind(path) == kind for path in blocks[latest + 1 :])
    return int(_SPARE * smallest_bytes) * alike


def _shrinks(
    view: Attribution, earlier_rows: NDArray[np.int64], latest_rows: NDArray[np.int64]
) -> bool:
    """Whether the latest block has kept less than the one before at the same stacks: the blocks of a
    pyramid (Glow's, an encoder's for images) are of one kind, and each is smaller.
    """
    earlier, latest = _sizes_by_stack(view, earlier_rows), _sizes_by_stack(view, latest_rows)
    pairs = [
        (before, now)
        for stack, sizes in latest.items()
        for before, now in zip(earlier.get(stack, ()), sizes, strict=False)
    ]
    return sum(now for _, now in pairs) < _SPARE * sum(before for before, _ in pairs)


def _sizes_by_stack(view: Attribution, rows: NDArray[np.int64]) -> dict[int, list[int]]:
    allocations = view.device.allocations
    sizes: dict[int, list[int]] = defaultdict(list)
    stacks, bytes_of_row = allocations.stack[rows], allocations.requested_bytes[rows]
    for stack, size in zip(stacks.tolist(), bytes_of_row.tolist(), strict=True):
        sizes[stack].append(size)
    return sizes


def _most_of_blocks(done: Sequence[int], blocks_to_come: int) -> int:
    """The most that the rest of the latest block and those to come keep: each as much as the latest
    ones done, or all as much as those done on average and one the most of them.
    """
    complete_sizes = list(filter(None, done))
    usual_bytes = sum(complete_sizes) / len(complete_sizes)
    like_latest = max(done[-2:]) / _SPARE * (blocks_to_come + 1)
    like_all = usual_bytes / _SPARE * (blocks_to_come + 1) + max(done)
    return int(min(like_latest, like_all))


def passes_of_step(view: Attribution, event: int) -> list[NDArray[np.int64]]:
    """By pass of the step of an event through the model that is running, what its modules asked for;
    the last pass is the one under way.

    A loss, a batch or a sum outside of all modules lies between two passes, so that the turns of a
    loop inside of a model's own forward are one.
    """
    rows = rows_of_step(view, event)
    is_marked = view.modules.marked[rows]
    has_origin = is_marked | (view.device.allocations.stack[rows] != NO_STACK)
    rows, is_marked = rows[has_origin], is_marked[has_origin]
    runs = [run for is_pass, run in _runs(rows, is_marked) if is_pass]
    first_modules = view.modules.module[[run[0] for run in runs]].tolist()
    return [
        run for run, first in zip(runs, first_modules, strict=True) if first == first_modules[-1]
    ]


def block_runs(view: Attribution, event: int) -> list[NDArray[np.int64]]:
    """By run, in the step of an event, of the block that is running, what it asked for; the last is
    the one under way. Empty where no block is known.
    """
    rows = rows_of_step(view, event)
    rows = rows[view.modules.marked[rows]]
    paths = _block_paths(view, rows)
    runs = _runs(rows[paths != ""], paths[paths != ""])
    return [run for path, run in runs if path == runs[-1][0]]


def blocks_of_pass(view: Attribution, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The same by block of one pass, of the kind that is running; none where none is."""
    paths = _block_paths(view, rows)
    if not paths[-1]:
        return []
    kind = _kind(paths[-1])
    is_alike = np.array([path != "" and _kind(path) == kind for path in paths], np.bool_)
    return [run for _, run in _runs(rows[is_alike], paths[is_alike])]


def _runs(rows: NDArray[np.int64], labels: NDArray[Any]) -> list[tuple[Any, NDArray[np.int64]]]:
    """The rows, cut where their labels change: of each run its label and its rows."""
    if not len(rows):
        return []
    edges = np.flatnonzero(labels[1:] != labels[:-1]) + 1
    firsts = labels[np.append(0, edges)].tolist()
    return list(zip(firsts, np.split(rows, edges), strict=True))


def _block_paths(view: Attribution, rows: NDArray[np.int64]) -> NDArray[np.object_]:
    """The block that each of some allocations was made in, all of them inside of modules; "" where
    that is in none.
    """
    by_module = np.array([_block_path(path) for path in view.modules.paths], np.object_)
    return by_module[view.modules.module[rows]]


def _block_of(
    view: Attribution, rows: NDArray[np.int64], blocks: Sequence[str]
) -> NDArray[np.int64]:
    """The index of the block that each allocation was made in; -1."""
    numbers = {path: n for n, path in enumerate(blocks)}
    paths = view.modules.paths
    block_of = np.array([numbers.get(_block_path(path), -1) for path in paths] + [-1], np.int64)
    return np.asarray(block_of[view.modules.module[rows]])


def _bytes_by_block(block: NDArray[np.int64], sizes: NDArray[np.int64]) -> dict[int, int]:
    bytes_by_block: dict[int, int] = defaultdict(int)
    for number, size in zip(block[block >= 0].tolist(), sizes[block >= 0].tolist(), strict=True):
        bytes_by_block[number] += size
    return bytes_by_block


def _blocks_of_model(view: Attribution) -> list[str]:
    """The paths of the model's repeated blocks, in the order in which it has them."""
    table = view.trace.names
    if table is None:
        return []
    paths: dict[str, None] = {}
    for row in np.flatnonzero(table.kind == TensorKind.PARAMETER).tolist():
        path = _block_path(table.name[row])
        if path:
            paths[path] = None
    return list(paths)


def _block_path(path: str) -> str:
    match = _BLOCK.match(path)
    return match[1] if match else ""


def _root(path: str) -> str:
    """The model that a block is of: a teacher's blocks are not what a student's pass still runs."""
    return path.partition(".")[0]


def _kind(path: str) -> str:
    return path.rpartition(".")[0]


def rows_of_step(view: Attribution, event: int) -> NDArray[np.int64]:
    """The allocations that the step of an event had made before it."""
    bounds = [step_start(view, event), event]
    first, end = np.searchsorted(view.device.allocations.born, bounds).tolist()
    return np.arange(first, end)


def step_start(view: Attribution, event: int) -> int:
    """The event with which the step of an event begins; 0 where what repeats may be less than one."""
    starts = view.steps.starts_until(event)
    return int(starts[-1]) if len(starts) and view.steps.source != PATTERN else 0
