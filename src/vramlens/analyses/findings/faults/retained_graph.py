"""A graph that goes on through several backward passes, or many derivatives: a state that is not
detached between them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.attribution.training import (
    BACKWARD_FRAME,
    DERIVATIVE_FRAME,
    optimizer_works,
    spans_with,
)
from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.usage import part_of_heap
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.trace import ParameterUse
from vramlens.units import format_size

_FEWEST_PASSES = 3
"""Backward passes after which memory stayed: two losses of one graph are usual, three of them rare."""
_MOST_GIVEN_UP = 0.5
"""Of what they left, that those passes gave back."""
_LEAST_OF_A_PASS, _LEAST_SHARE = 0.04, 0.4
"""Of what is in use: of each of these passes, and of all together."""
_FEWEST_DERIVATIVES = 20
"""Steps that each asked for a derivative with its graph. Meta-learning takes 1 to 10 inner steps (MAML:
5 to train, 10 to test), and an equation of two derivatives asks about as often.
"""
_FEWEST_BEYOND_TRAINING = 6
"""The same, where training has shown how many go with one backward pass: one, say, for forces."""
_WITHOUT_TRAINING = (
    "the graph goes on from one step to the next",
    "detach what goes from one step to the next (positions, forces, energies: x = x.detach())",
)
_BEYOND_TRAINING = (
    "something keeps them all, a running sum or a state that goes from one step to the next",
    "add up numbers (total += error.item()), and detach a state before the next step (x = x.detach())",
)
"""What keeps the graphs, and what to do."""
_TIMES_THE_USUAL = 4
"""As many as before any backward pass so far: a horizon is doubled, not made four times as long."""
_LEAST_COMPUTED = 0.1
"""Of what a step leaves: what it computed before its derivative. Of several derivatives of one result
only the first has it.
"""


def retained_graph(scene: Scene) -> Iterator[Finding]:
    """The activations that are alive when memory runs out although backward passes ran since, if each
    of several left some; else the graphs of many derivatives, likewise.
    """
    if scene.ending_request is None:
        return
    findings = list(_left_by_backward(scene)) or _left_by_derivatives(scene)
    yield from findings


def _left_by_backward(scene: Scene) -> Iterator[Finding]:
    """What calls of ``backward`` left of a graph that they went through."""
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
    oldest = int(allocations.born[rows].min())
    if _calls_of_backward(scene, oldest) < passes:
        return
    if _given_up_since(scene, oldest) > _MOST_GIVEN_UP * size_bytes:
        return
    largest = int(rows[np.argmax(sizes)])
    yield Finding(
        id="retained_graph",
        verdict=Verdict.LIKELY,
        title=f"{part_of_heap(size_bytes, heap)} are activations that {passes} backward passes went"
        " through and left: the graph goes on from one to the next",
        bytes=size_bytes,
        place=view.place_of_block(largest),
        evidence=("a backward pass frees its graph, unless it is called with retain_graph=True",),
        fix="detach what goes from one pass to the next (state = state.detach()), and call backward()"
        " without retain_graph=True: gradients then reach back to that cut (up to"
        f" {format_size(size_bytes)} less)",
        extent=Extent(scene.advice_event, rows),
    )


def _given_up_since(scene: Scene, event: int) -> int:
    """The activations that backward passes since an event gave back: where they left the rest for
    passes of their own (a pipeline's micro-batches in flight), about as much.
    """
    view, allocations = scene.view, scene.device.allocations
    freed = allocations.free_requested
    is_given_up = (freed > event) & (freed < scene.advice_event)
    is_given_up &= view.categories.category == Category.ACTIVATIONS
    rows = np.flatnonzero(is_given_up)
    span = view.phases.span_at(freed[rows])
    rows, span = rows[span >= 0], span[span >= 0]
    is_older = allocations.born[rows] < view.phases.span_start[span]
    return int(allocations.requested_bytes[rows[is_older]].sum())


def _calls_of_backward(scene: Scene, since: int) -> int:
    """How many calls of ``backward`` began since an event: each makes its first gradient. Meta-learning
    asks ``autograd.grad`` for a graph that its outer step needs.
    """
    allocations, starts = scene.device.allocations, scene.view.phases.span_start
    rows = np.flatnonzero(allocations.born >= since)
    in_call = rows[scene.trace.stacks.within(BACKWARD_FRAME, allocations.stack[rows])]
    return len(set(np.searchsorted(starts, allocations.born[in_call]).tolist()))


def _left_by_derivatives(scene: Scene) -> Iterator[Finding]:
    """What steps left that each asked ``autograd.grad`` for a derivative with its graph, of a state that
    is not detached between them.
    """
    view, allocations, heap = scene.view, scene.device.allocations, scene.advice_heap
    last_cut, spans, fewest = _derivatives_now(scene)
    if len(spans) < fewest:
        return
    starts, ends = view.phases.span_start[spans], view.phases.span_end[spans]
    rows = scene.advice_rows
    is_other = np.isin(view.categories.category[rows], (Category.PARAMETERS, Category.WORKSPACE))
    rows = rows[(allocations.born[rows] > last_cut) & ~is_other & ~view.names.placed[rows]]
    step = np.searchsorted(ends, allocations.born[rows], side="right")
    rows, step = rows[step < len(ends)], step[step < len(ends)]
    sizes = allocations.requested_bytes[rows]
    size_bytes = int(sizes.sum())
    is_computed = allocations.born[rows] < starts[step]
    computed = np.bincount(step[is_computed], weights=sizes[is_computed], minlength=len(ends))
    steps = int((computed > _LEAST_COMPUTED * size_bytes / len(ends)).sum())
    if steps < fewest or size_bytes < _LEAST_SHARE * heap.requested_bytes:
        return
    if _given_up_since(scene, last_cut) > _MOST_GIVEN_UP * size_bytes:
        return
    keeper, remedy = _BEYOND_TRAINING if fewest == _FEWEST_BEYOND_TRAINING else _WITHOUT_TRAINING
    saved_bytes = size_bytes - int(np.bincount(step, weights=sizes).max())
    yield Finding(
        id="retained_graph",
        verdict=Verdict.LIKELY,
        title=f"{part_of_heap(size_bytes, heap)} are graphs of {steps} steps that asked"
        f" torch.autograd.grad for a derivative: {keeper}",
        bytes=saved_bytes,
        place=view.place_of_block(int(rows[is_computed][np.argmax(sizes[is_computed])])),
        evidence=(
            "with create_graph=True a derivative has a graph of its own, and keeps that of its step",
        ),
        fix=f"unless one backward pass is to go through all these steps, {remedy}: then each step's graph"
        f" goes with the step (about {format_size(saved_bytes)} less)",
        extent=Extent(scene.advice_event, rows),
    )


def _derivatives_now(scene: Scene) -> tuple[int, NDArray[np.int64], int]:
    """The event of the last backward pass or optimizer step, the calls of ``autograd.grad`` since, as
    numbers of backward passes, and how many of them are too many to be meant; none where as many are
    usual, or training has yet to show how many.
    """
    view, allocations = scene.view, scene.device.allocations
    starts, ends = view.phases.span_start, view.phases.span_end
    ended = np.flatnonzero(ends < scene.advice_event)
    is_backward = spans_with(view, BACKWARD_FRAME)
    is_derivative = spans_with(view, DERIVATIVE_FRAME) & ~is_backward
    of_optimizer = allocations.born[view.phases.phase == Phase.OPTIMIZER]
    cuts = np.sort(np.concatenate([starts[is_backward], of_optimizer]))
    cuts = cuts[cuts < scene.advice_event]
    last_cut = int(cuts.max(initial=-1))
    derivatives = ended[is_derivative[ended]]
    since = derivatives[starts[derivatives] > last_cut]
    if not len(cuts):
        return last_cut, since[:0] if _may_train(scene) else since, _FEWEST_DERIVATIVES
    before = derivatives[starts[derivatives] < last_cut]
    usual = np.bincount(np.searchsorted(cuts, starts[before]), minlength=1).max()
    fewest = _FEWEST_BEYOND_TRAINING if usual else _FEWEST_DERIVATIVES
    return last_cut, since if len(since) > _TIMES_THE_USUAL * usual else since[:0], fewest


def _may_train(scene: Scene) -> bool:
    """Whether the program has an optimizer, as far as is known."""
    table = scene.view.names.table
    if table is None or optimizer_works(scene.trace, scene.view.phases):
        return True
    return bool((table.use == ParameterUse.STEPPED).any())
