"""What the memory is made of, as advice: what each usual remedy could save here, roughly."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Set
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.remedies_in_use import (
    computes_in_half,
    has_batch_of_one,
    is_half_type,
    uses_checkpoints,
)
from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding, Place
from vramlens.analyses.leaks.recorded_leak import RecordedLeak, rows_of
from vramlens.analyses.memory.heap import Heap, LineBytes
from vramlens.analyses.scene import Scene
from vramlens.trace import NO_STACK
from vramlens.units import MIB, format_size

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution

_LARGE_SHARE = 0.25
_WITHOUT_8_BIT = re.compile(
    r"torch[/\\]optim[/\\](?:sparse_adam|adamax|nadam|radam|adadelta|asgd|rprop|lbfgs)\.py:"
)
"""bitsandbytes and torchao have none of these."""


def activations(scene: Scene) -> Iterator[Finding]:
    """Activations, when they make up much of the memory; without what merely leaks, or what
    nothing will use.
    """
    heap = scene.advice_heap
    category = heap.by_category.get("activations")
    has_backward = len(scene.view.phases.span_start) or scene.device.out_of_memory
    if category is None or not has_backward:
        return  # nothing waits for a backward pass where there is none
    evaluation, leaks = scene.evaluation, scene.leaking_tensors
    unused = evaluation.kept_at(heap.event) if evaluation is not None else 0
    size = category.bytes - _leaked_activations(scene) - unused
    if size < max(_LARGE_SHARE * heap.requested_bytes, MIB, category.bytes // 2):
        return
    line = _main_line(heap, leaks)
    other_cures = _cures_beside_the_batch(scene.view, line)
    half_batch = f"halving the batch saves about {_half_of(size, heap)}"
    fix = f"{half_batch}; or {other_cures}" if other_cures else half_batch
    is_of_one = has_batch_of_one(scene.view)
    yield Finding(
        id="activations",
        verdict=category.verdict,
        title=f"{scene.part_of_heap(size)} are activations kept for the backward pass",
        bytes=size,
        place=line.place if line else None,
        evidence=(
            "they are of one sample, and proportional to its size"
            if is_of_one
            else "they are proportional to the batch size and to the size of each input",
            *_more_at_line(line, size),
        ),
        fix=(other_cures or None) if is_of_one else fix,
        fix_without_batch=other_cures or None,
        extent=_extent_of(scene, Category.ACTIVATIONS, unwanted=_unwanted_rows(scene)),
    )


def _more_at_line(line: LineBytes | None, size: int) -> Iterator[str]:
    """Yields why their line holds more than all activations together, where it does."""
    if line is not None and line.bytes > size:
        total = format_size(line.bytes)
        yield f"{line.place} holds {total} in all, some of it not kept for the backward pass"


def _cures_beside_the_batch(view: Attribution, line: LineBytes | None) -> str:
    """What makes activations smaller for the same batch, as far as the program does not do it yet;
    "" where it does all of it.
    """
    cures = []
    if not uses_checkpoints(view):
        cures.append(f"use torch.utils.checkpoint around {_checkpoints(view)}")
    is_half = (line is not None and _is_in_half(line)) or computes_in_half(view)
    if not is_half and not _is_one_loop(view):
        cures.append("autocast to bfloat16")
    return ", or ".join(cures)


def _checkpoints(view: Attribution) -> str:
    is_loop = _is_one_loop(view)
    return "each iteration of the loop that makes them" if is_loop else "the repeated blocks"


def _is_one_loop(view: Attribution) -> bool:
    """Whether no module computes, which marks would show."""
    return view.trace.meta.module_marks and not view.modules.marked.any()


def _leaked_activations(scene: Scene) -> int:
    rows = rows_of(scene.leaking_tensors)
    rows = rows[scene.view.categories.category[rows] == Category.ACTIVATIONS]
    return scene.bytes_of(rows)


def _half_of(size: int, heap: Heap) -> str:
    """Half of the activations; up to half of what an operation holds for a moment, too, such as
    the gradient of a loss.
    """
    half = format_size(size // 2)
    temporaries = heap.by_category.get("temporaries")
    if temporaries is None or temporaries.bytes < MIB:
        return half
    both = format_size((size + temporaries.bytes) // 2)
    return half if both == half else f"{half}, up to {both} with the temporaries of this moment"


def _main_line(heap: Heap, leaks: Iterable[RecordedLeak]) -> LineBytes | None:
    """The line with most activations, without what it leaks."""
    leaking = {leak.place: leak.bytes for leak in leaks}
    lines = [row for row in heap.by_line if row.category == "activations"]
    return max(lines, key=lambda row: row.bytes - leaking.get(row.place, 0), default=None)


def _is_in_half(line: LineBytes) -> bool:
    """Whether the largest of the line's tensors is of half precision."""
    return bool(line.names) and is_half_type(line.names[0])


def optimizer_state(scene: Scene) -> Iterator[Finding]:
    """Optimizer state, when it makes up much of the memory."""
    heap = scene.advice_heap
    category = heap.by_category.get("optimizer_state")
    if category is None or category.bytes < _LARGE_SHARE * heap.requested_bytes:
        return
    saved = f"an 8-bit optimizer saves about {format_size(category.bytes * 3 // 4)}; "
    yield Finding(
        id="optimizer_state",
        verdict=category.verdict,
        title=f"{scene.part_of_heap(category.bytes)} are optimizer state",
        bytes=category.bytes,
        fix=f"{saved if _may_be_8_bit(scene.view) else ''}on several GPUs,"
        " sharding (FSDP, ZeRO-1) divides it by their number",
        extent=_extent_of(scene, Category.OPTIMIZER_STATE),
    )


def _may_be_8_bit(view: Attribution) -> bool:
    """Whether the state is that of an optimizer which others have in 8 bits, as far as stacks tell."""
    stacks, allocations = view.trace.stacks, view.device.allocations
    rows = np.flatnonzero(view.categories.category == Category.OPTIMIZER_STATE)
    rows = rows[allocations.stack[rows] != NO_STACK]
    is_without = stacks.within(_WITHOUT_8_BIT, allocations.stack[rows])
    sizes = allocations.requested_bytes[rows]
    return bool(2 * sizes[is_without].sum() <= sizes.sum())


def _extent_of(
    scene: Scene, category: Category, unwanted: NDArray[np.int64] | None = None
) -> Extent:
    """The allocations of a category at the telling moment, without some that another finding is
    about.
    """
    rows = scene.advice_rows
    rows = rows[scene.view.categories.category[rows] == category]
    return scene.extent(rows if unwanted is None else np.setdiff1d(rows, unwanted))


def _unwanted_rows(scene: Scene) -> NDArray[np.int64]:
    """What leaks, and what evaluation keeps for nothing."""
    leaked = rows_of(scene.leaking_tensors)
    return leaked if scene.evaluation is None else np.append(leaked, scene.evaluation.rows)


def rows_of_lines(scene: Scene, places: Set[Place]) -> NDArray[np.int64]:
    """The allocations of some lines at the telling moment."""
    view, rows = scene.view, scene.advice_rows
    frames = view.phases.frame[rows]
    of_places = [frame for frame in np.unique(frames).tolist() if view.place(frame) in places]
    return np.asarray(rows[np.isin(frames, of_places)])
