"""What a custom autograd Function saves that its backward pass could compute again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.trace import Frame
from vramlens.units import counted, format_size

_APPLIES = re.compile(r"[/\\]torch[/\\]autograd[/\\]function\.py$")
"""Where a Function's ``apply`` calls its ``forward``."""
_FEWEST_LINES, _FEWEST_CALLS = 3, 2
"""Lines that each saved as much: one result and one mask are what a backward pass needs; and calls, of which one
may still run.
"""
_LEAST_SHARE = 0.3
"""Of what is in use."""


@after_failure
def saved_by_function(scene: Scene) -> Iterator[Finding]:
    """What the lines of one Function's ``forward`` made that is in use, if several keep as many bytes each."""
    lines = max(
        _lines_by_function(scene), key=lambda lines: sum(map(len, lines.values())), default={}
    )
    sizes = {place: scene.bytes_of(rows) for place, rows in lines.items()}
    largest = max(sizes.values(), default=0)
    alike = [place for place, size_bytes in sizes.items() if size_bytes == largest]
    rows = (
        np.sort(np.concatenate([lines[place] for place in alike]))
        if alike
        else np.zeros(0, np.int64)
    )
    size_bytes = scene.bytes_of(rows)
    if len(alike) < _FEWEST_LINES or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    saved_bytes = size_bytes - largest
    yield Finding(
        id="saved_by_function",
        verdict=Verdict.LIKELY,
        title=f"the forward of a custom autograd Function keeps {counted(len(alike), 'tensor')} of"
        f" one size for each call: {scene.part_of_heap(size_bytes)}",
        bytes=saved_bytes,
        place=alike[0],
        evidence=(f"the same {counted(len(alike), 'line')} made them in each call",),
        fix="save only what the others follow from (ctx.save_for_backward of the inputs), and"
        " compute results and masks again in backward(): about"
        f" {format_size(saved_bytes)} less, with one of them left",
        extent=scene.extent(rows),
        recurs=True,
    )


def _lines_by_function(scene: Scene) -> Iterator[dict[Place, list[int]]]:
    """Yields, for the ``forward`` of each Function, what each of its lines made in several calls that is in use."""
    view, stacks = scene.view, scene.trace.stacks
    alive = scene.advice_rows
    alive = alive[(view.phases.phase[alive] != Phase.BACKWARD) & ~view.names.placed[alive]]
    stack_of_row = scene.device.allocations.stack[alive].astype(np.int64)
    lines: dict[Place, list[int]] = {}
    for stack in np.unique(stack_of_row[stack_of_row < len(stacks)]).tolist():
        place = view.place_of_stack(stack)
        if place is not None and _is_applied(stacks.of(stack), place):
            lines.setdefault(place, []).extend(alive[stack_of_row == stack].tolist())
    functions: dict[str, dict[Place, list[int]]] = {}
    for place, rows in lines.items():
        if len(rows) >= _FEWEST_CALLS:
            functions.setdefault(place.file, {})[place] = rows
    yield from functions.values()


def _is_applied(frames: Sequence[Frame], place: Place) -> bool:
    """Whether the innermost line of the program is in a function that ``apply`` called."""
    return any(
        inner.place == place and _APPLIES.search(outer.file) for inner, outer in pairwise(frames)
    )
