"""A loop inside of one pass, of which the backward pass needs what every turn computed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.remedies_in_use import CHECKPOINT_FRAME, uses_checkpoints
from vramlens.analyses.attribution.training import Training
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK
from vramlens.units import format_size

_FEWEST_TURNS = 8
_MOST_PASSES = 2
"""Calls of the model since the first turn: each turn of more is a pass of its own."""
_SEGMENTS = (
    "put about {} turns into one checkpoint, instead of each into its own: what goes into a"
    " checkpoint is kept once for all of its turns (up to {} less)"
)
_LEAST_SHARE = 0.6
"""Of what is in use."""


@after_failure
def repeated_turns(scene: Scene) -> Iterator[Finding]:
    """The activations of a loop's turns when memory runs out in one of them, if they are most of all."""
    view = scene.view
    has_checkpoints = uses_checkpoints(view)
    rows, turns = _rows_of_turns(scene, has_checkpoints=has_checkpoints)
    size_bytes = scene.bytes_of(rows)
    if not turns or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    begins = scene.pass_begins
    first_event = int(scene.device.allocations.born[rows].min())
    if ((begins > first_event) & (begins < scene.advice_event)).sum() > _MOST_PASSES:
        return
    largest = scene.device.allocations.largest_of(rows)
    saved_bytes = size_bytes - size_bytes // (math.isqrt(turns) if has_checkpoints else turns)
    yield Finding(
        id="repeated_turns",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are activations that a loop makes anew in each"
        f" turn, {turns:,} of a kind, kept for the backward pass",
        bytes=saved_bytes,
        place=view.place_of_block(largest),
        evidence=("the same lines request the same sizes in each turn",),
        fix=_SEGMENTS.format(math.isqrt(turns), format_size(saved_bytes))
        if has_checkpoints
        else "call the body of the loop through torch.utils.checkpoint.checkpoint(…, use_reentrant=False): a turn"
        " then keeps only what goes into it. Where the turns come to a fixed point (Sinkhorn,"
        " power iterations, an implicit layer), run them in torch.no_grad() and only the last one"
        f" with gradients (up to {format_size(saved_bytes)} less)",
        extent=scene.extent(rows),
    )


def _rows_of_turns(scene: Scene, *, has_checkpoints: bool) -> tuple[NDArray[np.int64], int]:
    """The activations since the last backward pass that the same calls of the same module asked for, as
    often and more; and how often the most of them.
    """
    view, allocations = scene.view, scene.device.allocations
    rows = scene.advice_rows
    is_kept = view.modules.trains[rows] | _is_only_in_graph(scene, rows)
    is_kept &= allocations.stack[rows] != NO_STACK
    if has_checkpoints:  # what goes into one is what the last one gave
        is_kept &= scene.trace.stacks.within(CHECKPOINT_FRAME, allocations.stack[rows])
    rows = rows[
        is_kept & (allocations.born[rows] > scene.last_backward_end) & ~view.names.placed[rows]
    ]
    if not len(rows):
        return rows, 0
    calls = np.stack(
        [allocations.stack[rows], view.modules.module[rows], allocations.requested_bytes[rows]]
    )
    _, group, counts = np.unique(calls, axis=1, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    is_repeated = counts[group] >= _FEWEST_TURNS
    rows, group = rows[is_repeated], group[is_repeated]
    if not len(rows):
        return rows, 0
    largest = np.bincount(group, weights=allocations.requested_bytes[rows]).argmax()
    return rows, int(counts[largest])


def _is_only_in_graph(scene: Scene, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a graph alone keeps each, as far as names say it, in a program that trains; no module made it."""
    view = scene.view
    is_in_graph = view.names.in_graph[rows] & ~view.modules.marked[rows]
    return np.asarray(is_in_graph & (view.training == Training.SEEN))
