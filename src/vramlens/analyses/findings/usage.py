"""What the memory is made of, as advice: what each usual remedy could save here, roughly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding, Place
from vramlens.analyses.leaks.recorded_leak import RecordedLeak, rows_of
from vramlens.analyses.memory.heap import Heap, LineBytes
from vramlens.analyses.scene import Scene
from vramlens.ground.allocator_sizes import in_pages
from vramlens.ground.place import base_name
from vramlens.ground.verdict import Verdict
from vramlens.ground.vocabulary import Cause
from vramlens.units import MIB, counted, format_size

_LARGE_SHARE = 0.25
_HALF_PRECISION = ("bfloat16[", "float16[")
"""How the name begins of a tensor that only its type and shape are known of."""


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
    autocast = "" if line is not None and _is_half_precision(line) else ", or autocast to bfloat16"
    other_cures = f"use torch.utils.checkpoint around the repeated blocks{autocast}"
    yield Finding(
        id="activations",
        verdict=category.verdict,
        title=f"{_part(size, heap)} are activations kept for the backward pass",
        bytes=size,
        place=line.place if line else None,
        evidence=("they are proportional to the batch size and to the size of each input",),
        fix=f"halving the batch saves about {_half_of(size, heap)}; or {other_cures}",
        fix_without_batch=other_cures,
        extent=_extent_of(scene, Category.ACTIVATIONS, unwanted=_unwanted_rows(scene)),
    )


def _leaked_activations(scene: Scene) -> int:
    rows = rows_of(scene.leaking_tensors)
    rows = rows[scene.view.categories.category[rows] == Category.ACTIVATIONS]
    return int(scene.device.allocations.requested_bytes[rows].sum())


def _half_of(size: int, heap: Heap) -> str:
    """Half of the activations; up to half of what an operation holds for a moment, too, such as
    the gradient of a loss.
    """
    half = format_size(size // 2)
    temporaries = heap.by_category.get("temporaries")
    if temporaries is None or temporaries.bytes < MIB:
        return half
    both = format_size((size + temporaries.bytes) // 2)
    return f"{half}, up to {both} with the temporaries of this moment"


def _main_line(heap: Heap, leaks: Iterable[RecordedLeak]) -> LineBytes | None:
    """The line with most activations, without what it leaks."""
    leaking = {leak.place: leak.bytes for leak in leaks}
    lines = [row for row in heap.by_line if row.category == "activations"]
    return max(lines, key=lambda row: row.bytes - leaking.get(row.place, 0), default=None)


def _is_half_precision(line: LineBytes) -> bool:
    """True where the largest of the line's tensors is named with a type that autocast would make
    no smaller.
    """
    return bool(line.names) and line.names[0].startswith(_HALF_PRECISION)


def optimizer_state(scene: Scene) -> Iterator[Finding]:
    """Optimizer state, when it makes up much of the memory."""
    heap = scene.advice_heap
    category = heap.by_category.get("optimizer_state")
    if category is None or category.bytes < _LARGE_SHARE * heap.requested_bytes:
        return
    saved = format_size(category.bytes * 3 // 4)
    yield Finding(
        id="optimizer_state",
        verdict=category.verdict,
        title=f"{_part(category.bytes, heap)} are optimizer state",
        bytes=category.bytes,
        fix=f"an 8-bit optimizer saves about {saved}; sharding (FSDP, ZeRO-1) "
        "divides it by the number of ranks",
        extent=_extent_of(scene, Category.OPTIMIZER_STATE),
    )


def largest_line(scene: Scene) -> Iterator[Finding]:
    """The line that holds most of the memory when what is alive leaves too little room."""
    line, verdict = _line_of_most(scene.advice_heap), scene.verdict
    if line is None or verdict is None or not scene.is_ended_by_failure:
        return
    if verdict.cause not in (Cause.CAPACITY, Cause.SPIKE):
        return
    size = format_size(line.bytes)
    is_lone = line.allocations == 1
    tensors = "one tensor" if is_lone else counted(line.allocations, "tensor")
    enough = ""
    if verdict.short_by_bytes and verdict.short_by_bytes < line.bytes:
        # Segments are whole pages: so much less surely gives back what is missing.
        less = format_size(in_pages(verdict.short_by_bytes))
        is_enough = "are" if is_lone else "may be"
        enough = f": {less} less {is_enough} enough for this request"
    which, remedy = ("the tensor", "free it") if is_lone else ("the tensors", "free some")
    yield Finding(
        id="largest_line",
        verdict=Verdict.PROVEN,
        title=f"one line uses {size}, in {tensors}",
        bytes=line.bytes,
        place=line.place,
        evidence=(
            f"{_part(line.bytes, scene.advice_heap)} of the memory in use when the request failed",
        ),
        fix=f"make {which} of {_short_name(line.place)} smaller or {remedy}{enough}",
        extent=_extent_of_line(scene, line.place),
    )


def _extent_of(
    scene: Scene, category: Category, unwanted: NDArray[np.int64] | None = None
) -> Extent:
    """The allocations of a category at the telling moment, without some that another finding is
    about.
    """
    view, event = scene.view, scene.advice_event
    rows = view.device.allocations.alive_after(event)
    rows = rows[view.categories.category[rows] == category]
    return Extent(event, rows if unwanted is None else np.setdiff1d(rows, unwanted))


def _unwanted_rows(scene: Scene) -> NDArray[np.int64]:
    """What leaks, and what evaluation keeps for nothing."""
    leaked = rows_of(scene.leaking_tensors)
    return leaked if scene.evaluation is None else np.append(leaked, scene.evaluation.rows)


def _extent_of_line(scene: Scene, place: Place) -> Extent:
    """The allocations of a line at the telling moment."""
    view, event = scene.view, scene.advice_event
    rows = view.device.allocations.alive_after(event)
    frames = view.phases.frame[rows]
    of_place = [frame for frame in np.unique(frames).tolist() if view.place(frame) == place]
    return Extent(event, rows[np.isin(frames, of_place)])


def is_about_largest_line(scene: Scene, finding: Finding) -> bool:
    """Whether another finding's advice is about the line that holds most of the memory."""
    line = _line_of_most(scene.advice_heap)
    if line is None or finding.fix is None:
        return False
    return finding.id == line.category or finding.place == line.place


def _line_of_most(heap: Heap) -> LineBytes | None:
    """The line that more than half of the heap is of; None where there is none."""
    if not heap.by_line or 2 * heap.by_line[0].bytes <= heap.requested_bytes:
        return None
    return heap.by_line[0]


def _short_name(place: Place) -> str:
    return str(replace(place, file=base_name(place.file) or place.file))


def _part(size: int, heap: Heap) -> str:
    return f"{format_size(size)} ({100 * size / heap.requested_bytes:.0f}%)"
