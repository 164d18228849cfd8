"""A graph that goes on through several backward passes: a state that is not detached between them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.usage import part_of_heap
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK
from vramlens.units import format_size

_BACKWARD = re.compile(r"torch[/\\](?:_tensor|autograd[/\\]__init__)\.py:backward$")
"""``loss.backward()``; meta-learning asks ``autograd.grad`` for a graph that its outer step needs."""
_FEWEST_PASSES = 3
"""Backward passes after which memory stayed: two losses of one graph are usual, three of them rare."""
_LEAST_OF_A_PASS, _LEAST_SHARE = 0.04, 0.4
"""Of what is in use: of each of these passes, and of all together."""


def retained_graph(scene: Scene) -> Iterator[Finding]:
    """The activations that are alive when memory runs out although backward passes ran since, if each
    of several left some.
    """
    if scene.ending_request is None:
        return
    view, allocations, heap = scene.view, scene.device.allocations, scene.advice_heap
    ends = view.phases.span_end[view.phases.span_end < scene.advice_event]
    rows = scene.advice_rows
    is_activation = view.categories.category[rows] == Category.ACTIVATIONS
    rows = rows[is_activation & ~view.names.placed[rows]]
    gaps = np.searchsorted(ends, allocations.born[rows])
    rows, gaps = rows[gaps < len(ends)], gaps[gaps < len(ends)]
    sizes = allocations.requested_bytes[rows]
    by_gap = np.bincount(gaps, weights=sizes, minlength=len(ends))
    passes = int((by_gap >= _LEAST_OF_A_PASS * heap.requested_bytes).sum())
    size_bytes = int(sizes.sum())
    if passes < _FEWEST_PASSES or size_bytes < _LEAST_SHARE * heap.requested_bytes:
        return
    if _calls_of_backward(scene, int(allocations.born[rows].min())) < passes:
        return
    largest = int(rows[np.argmax(sizes)])
    yield Finding(
        id="retained_graph",
        verdict=Verdict.LIKELY,
        title=f"{part_of_heap(size_bytes, heap)} are activations that {passes} backward passes went"
        " through and left: the graph goes on from one to the next",
        bytes=size_bytes,
        place=view.place_of_block(largest),
        evidence=(
            "a backward pass frees its graph, unless it is called with retain_graph=True",
            "where it is cut, gradients reach no further back (truncated back-propagation)",
        ),
        fix="detach what goes from one pass to the next (state = state.detach()), and call backward()"
        f" without retain_graph=True (up to {format_size(size_bytes)} less)",
        extent=Extent(scene.advice_event, rows),
    )


def _calls_of_backward(scene: Scene, since: int) -> int:
    """How many calls of ``backward`` began since an event: each makes its first gradient."""
    allocations, starts = scene.device.allocations, scene.view.phases.span_start
    rows: NDArray[np.int64] = np.flatnonzero(
        (allocations.stack != NO_STACK) & (allocations.born >= since)
    )
    in_call = rows[scene.trace.stacks.within(_BACKWARD, allocations.stack[rows])]
    return len(set(np.searchsorted(starts, allocations.born[in_call]).tolist()))
