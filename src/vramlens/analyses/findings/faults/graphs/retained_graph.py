"""A graph that goes on through several backward passes, a state that is not detached between them; or one that
outlives its step, as its last backward pass retained it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.attribution.steps import PATTERN
from vramlens.analyses.attribution.training import BACKWARD_FRAME
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.graphs.derivative_graphs import (
    derivative_graphs,
    given_up_since,
)
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_FEWEST_PASSES = 3
"""Backward passes after which memory stayed: two losses of one graph are usual, three of them rare."""
_MOST_GIVEN_UP = 0.5
"""Of what they left, that those passes gave back."""
_LEAST_OF_A_PASS, _LEAST_SHARE = 0.04, 0.4
"""Of what is in use: of each of these passes, and of all together."""
_FEWEST_OF_GRAPH = 8
"""Tensors of a graph: one or two are results that a variable keeps."""
_LEAST_OF_STEP = 0.25
"""Of what is in use: of the graph of a step that is over."""


@after_failure
def retained_graph(scene: Scene) -> Iterator[Finding]:
    """The activations that are alive when memory runs out although backward passes ran since, if each
    of several left some; else the graphs of many derivatives, likewise.
    """
    findings = list(_left_by_backward(scene)) or list(_left_by_step(scene))
    yield from findings or derivative_graphs(scene)


def _left_by_backward(scene: Scene) -> Iterator[Finding]:
    """What calls of ``backward`` left of a graph that they went through."""
    view, allocations, heap = scene.view, scene.device.allocations, scene.advice_heap
    ends = view.phases.ends_before(scene.advice_event)
    rows = scene.advice_rows
    is_activation = view.categories.category[rows] == Category.ACTIVATIONS
    rows = rows[is_activation & ~view.names.placed[rows]]
    gaps = view.phases.passes_before(allocations.born[rows], scene.advice_event)
    rows, gaps = rows[gaps < len(ends)], gaps[gaps < len(ends)]
    sizes = allocations.requested_bytes[rows]
    by_gap = np.bincount(gaps, weights=sizes, minlength=len(ends))
    passes = int((by_gap >= _LEAST_OF_A_PASS * heap.requested_bytes).sum())
    size_bytes = int(sizes.sum())
    if passes < _FEWEST_PASSES or size_bytes < _LEAST_SHARE * heap.requested_bytes:
        return
    oldest = int(allocations.born[rows].min())
    if _calls_of_backward(scene, oldest) < passes:
        return
    if given_up_since(scene, oldest) > _MOST_GIVEN_UP * size_bytes:
        return
    largest = int(rows[np.argmax(sizes)])
    yield Finding(
        id="retained_graph",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are activations that {passes} backward passes went"
        " through and left: the graph goes on from one to the next",
        bytes=size_bytes,
        place=view.place_of_block(largest),
        evidence=("a backward pass frees its graph, unless it is called with retain_graph=True",),
        fix="detach what goes from one pass to the next (state = state.detach()), and call"
        " backward() without retain_graph=True: gradients then reach back to that cut (up to"
        f" {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )


def _left_by_step(scene: Scene) -> Iterator[Finding]:
    """The graph of a step that is over, and of which hardly anything was given up, though its modules run again
    by now: what one optimizer's step leaves for another one's does not.
    """
    view, allocations = scene.view, scene.device.allocations
    ends = view.phases.ends_before(scene.advice_event)
    starts = view.steps.starts_until(scene.advice_event)
    if view.steps.source == PATTERN or len(starts) < 2 or not (ends < starts[-1]).any():
        return
    rows = scene.advice_rows
    is_activation = view.categories.category[rows] == Category.ACTIVATIONS
    is_over = allocations.born[rows] < min(starts[-1], ends[ends < starts[-1]].max())
    rows = rows[is_activation & is_over & ~view.names.placed[rows]]
    size_bytes = scene.bytes_of(rows)
    least_bytes = _LEAST_OF_STEP * scene.advice_heap.requested_bytes
    if len(rows) < _FEWEST_OF_GRAPH or size_bytes < least_bytes:
        return
    if given_up_since(scene, int(allocations.born[rows].min())) > _MOST_GIVEN_UP * size_bytes:
        return
    if not _runs_again(scene, rows, int(starts[-1])):
        return
    yield Finding(
        id="retained_graph",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are activations of a step that has ended, beside"
        " those of the next one",
        bytes=size_bytes,
        place=view.place_of_block(allocations.largest_of(rows)),
        evidence=(
            "a backward pass frees its graph, unless it is called with retain_graph=True; then a"
            " loss or a result keeps it, until that variable is assigned again",
        ),
        fix="leave retain_graph=True out of the last backward() of a step (where each loss has its"
        " own call, add the losses up and call it once); delete results that no backward pass goes"
        f" through (about {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )


def _runs_again(scene: Scene, rows: NDArray[np.int64], event: int) -> bool:
    """Whether a backward pass went through modules that made some of these before an event, and they have
    run since.
    """
    modules, born = scene.view.modules, scene.device.allocations.born
    makers = modules.module[rows[modules.marked[rows]]]
    is_own = modules.marked & np.isin(modules.module, makers) & (born < scene.advice_event)
    is_in_backward = scene.view.phases.phase == Phase.BACKWARD
    is_used = is_own & is_in_backward & (born > born[rows].min()) & (born < event)
    return bool(is_used.any()) and bool((is_own & (born >= event)).any())


def _calls_of_backward(scene: Scene, since: int) -> int:
    """How many calls of ``backward`` began since an event: each makes its first gradient. Meta-learning
    asks ``autograd.grad`` for a graph that its outer step needs.
    """
    allocations, starts = scene.device.allocations, scene.view.phases.span_start
    rows = np.flatnonzero(allocations.born >= since)
    in_call = rows[scene.trace.stacks.within(BACKWARD_FRAME, allocations.stack[rows])]
    return len(set(np.searchsorted(starts, allocations.born[in_call]).tolist()))
