"""The line that holds most of the memory when what is alive leaves too little room."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from vramlens.analyses.attribution.phases import MODULE_CALL
from vramlens.analyses.finding import Finding, Place
from vramlens.analyses.findings.usage import rows_of_lines
from vramlens.analyses.memory.heap import Heap, LineBytes
from vramlens.analyses.scene import Scene
from vramlens.ground.allocator_sizes import in_pages
from vramlens.ground.place import PACKAGES, base_name
from vramlens.ground.verdict import Verdict
from vramlens.ground.vocabulary import Cause
from vramlens.trace import NO_STACK
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TORCH = re.compile(
    rf"[/\\]torch[/\\](?!.*{PACKAGES}[/\\])|[/\\]copy\.py:(?:deepcopy|_deepcopy_\w+|_reconstruct)$"
)
"""What makes a line's own tensors; a deep copy of a model is the line's, too."""
_MOST_LINES = 3
_FEW_TENSORS = 4
"""Of a line that makes large ones: many are one for each layer or turn."""
_FEWEST_ROWS = 1024
"""Of a square matrix that may well be of nodes, users or words."""
_MUCH = 0.25
"""Of the memory in use: what a line holds that is worth a word beside what it asks for."""


@dataclass(frozen=True, slots=True)
class _Holder:
    """Lines that hold most of the memory.

    Attributes:
        lines: one; or several of one function, which made what the program keeps.
        asked_bytes: what the first asks for besides: the failed request; 0 where another line did.
    """

    lines: tuple[LineBytes, ...]
    asked_bytes: int = 0

    @property
    def place(self) -> Place:
        return self.lines[0].place

    @property
    def bytes(self) -> int:
        return sum(line.bytes for line in self.lines)

    @property
    def tensors(self) -> int:
        return sum(line.allocations for line in self.lines)


def largest_line(scene: Scene) -> Iterator[Finding]:
    """The line that holds most of the memory when what is alive leaves too little room; several,
    where one function made most of it and the program keeps it.
    """
    verdict = scene.verdict
    if verdict is None or not scene.is_ended_by_failure:
        return
    holder = _holder_of_most(scene)
    if holder is None or verdict.cause not in (Cause.CAPACITY, Cause.SPIKE):
        return
    rows = rows_of_lines(scene, {line.place for line in holder.lines})
    if not _ask_themselves(scene, rows):
        return
    enough = ""
    is_lone = holder.tensors == 1 and not holder.asked_bytes
    if verdict.short_by_bytes and verdict.short_by_bytes < holder.bytes + holder.asked_bytes:
        # Segments are whole pages: so much less surely gives back what is missing.
        less = format_size(in_pages(verdict.short_by_bytes))
        is_enough = "are" if is_lone else "may be"
        enough = f": {less} less {is_enough} enough for this request"
    tensor_words, remedy = ("the tensor", "free it") if is_lone else ("the tensors", "free some")
    if len(holder.lines) > 1:
        remedy = "keep them on the CPU until they are used"
    yield Finding(
        id="largest_line",
        verdict=Verdict.PROVEN,
        title=_title(holder),
        bytes=holder.bytes,
        place=holder.place,
        evidence=(
            f"{scene.part_of_heap(holder.bytes)} of the memory in use when the request failed",
        ),
        fix=f"make {tensor_words} of {_short_names(holder.lines)} smaller"
        f"{_in_parts(scene, rows)} or {remedy}{enough}",
        extent=scene.extent(rows),
    )


def _in_parts(scene: Scene, rows: NDArray[np.int64]) -> str:
    """How a few large tensors can be made smaller, where the shape of one is known; "" elsewhere."""
    largest_row = scene.device.allocations.largest_of(rows)
    largest = scene.advice_shapes.get(largest_row)
    if largest is None or len(rows) > _FEW_TENSORS or len(largest.sizes) < 2:
        return ""
    if 2 * largest.bytes < scene.device.allocations.requested_bytes[largest_row]:
        return ""  # a view of it
    is_square = largest.sizes[-1] == largest.sizes[-2] >= _FEWEST_ROWS
    sparse = (
        "; if most of it is zeros, as in an adjacency matrix, make it sparse" if is_square else ""
    )
    return f" ({largest}: compute a part of one dimension at a time{sparse})"


def _title(holder: _Holder) -> str:
    one_line = len(holder.lines) == 1
    tensors = "one tensor" if holder.tensors == 1 else counted(holder.tensors, "tensor")
    names = [name for line in holder.lines for name in line.names]
    named = f" ({', '.join(names)})" if not one_line and len(names) <= _MOST_LINES else ""
    uses = "one line uses" if one_line else f"{counted(len(holder.lines), 'line')} use"
    asks = f", and requests {format_size(holder.asked_bytes)}" if holder.asked_bytes else ""
    return f"{uses} {format_size(holder.bytes)}, in {tensors}{named}{asks}"


def _holder_of_most(scene: Scene) -> _Holder | None:
    """The lines that more than half of the heap is of; None where there are none.

    What the failed request asked for counts as its line's.
    """
    heap = scene.advice_heap
    line = _line_of_most(heap)
    if line is not None:
        return _Holder((line,))
    if not heap.by_line:
        return None
    asked_bytes, first = scene.ending_request.size_bytes, heap.by_line[0]
    is_much = first.bytes >= _MUCH * heap.requested_bytes
    is_much &= 2 * (first.bytes + asked_bytes) > heap.requested_bytes + asked_bytes
    if is_much and first.place == scene.failed_place:
        return _Holder((first,), asked_bytes)
    return _kept_by_one_function(heap)


def _kept_by_one_function(heap: Heap) -> _Holder | None:
    """The lines of one function that more than half of the heap is of, where all of it is what a
    program keeps; None where there are none.
    """
    lines_by_function: dict[tuple[str, str | None], list[LineBytes]] = defaultdict(list)
    for line in heap.by_line:
        if line.category == "other" and line.names:
            lines_by_function[line.place.file, line.place.function].append(line)
    for lines in lines_by_function.values():
        lines = lines[:_MOST_LINES]
        if 2 * sum(line.bytes for line in lines) > heap.requested_bytes:
            return _Holder(tuple(line for line in lines if line.bytes >= lines[0].bytes // 2))
    return None


def _ask_themselves(scene: Scene, rows: NDArray[np.int64]) -> bool:
    """Whether most of it is what the lines themselves compute: a call of a model or of a trainer has
    no tensors to make smaller.
    """
    stacks, allocations = scene.view.trace.stacks, scene.view.device.allocations
    stack = allocations.stack[rows]
    sizes, stack = allocations.requested_bytes[rows][stack != NO_STACK], stack[stack != NO_STACK]
    if not len(stack):
        return True
    in_torch = stacks.mark_frames(_TORCH) & ~stacks.mark_frames(MODULE_CALL)
    asks_itself: dict[int, bool] = {}
    for number in np.unique(stack).tolist():
        frames = stacks.frames[stacks.starts[number] : stacks.starts[number + 1]]
        below = np.flatnonzero(stacks.user_frames[frames])[:1]
        inner = frames[: int(below[0])] if len(below) else frames
        asks_itself[number] = bool(in_torch[inner].all())
    own_bytes = sizes[[asks_itself[number] for number in stack.tolist()]].sum()
    return bool(2 * own_bytes >= sizes.sum())


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


def _short_names(lines: Sequence[LineBytes]) -> str:
    """The first line's place with its function, and the numbers of the others."""
    first = lines[0].place
    short = replace(first, file=base_name(first.file) or first.file)
    other_lines = " and ".join(f"line {line.place.line}" for line in lines[1:])
    return f"{short} and {other_lines}" if other_lines else str(short)
