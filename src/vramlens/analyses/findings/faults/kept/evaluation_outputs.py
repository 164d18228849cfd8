"""Outputs of an evaluation's batches that are kept until it ends, and make the run's peak."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.evaluation_passes import FEWEST_ALLOCATIONS
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_FEWEST_PASSES = 4
"""That left something of one size, by one stack."""
_LEAST_SHARE = 0.3
"""Of what is in use at the peak."""
_AS_LARGE = 0.05


def evaluation_outputs(scene: Scene) -> Iterator[Finding]:
    """What passes without gradients have left at the peak, one after the other, and no training uses: it goes
    before the next backward pass.
    """
    if scene.failure is not None or not len(scene.view.phases.span_start):
        return
    rows, passes = _rows_of_passes(scene)
    size_bytes = scene.bytes_of(rows)
    if size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    if _is_copied_for_training(scene, size_bytes, int(rows.max())):
        return
    largest = scene.device.allocations.largest_of(rows)
    yield Finding(
        id="evaluation_outputs",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are outputs of {passes} batches of an evaluation,"
        " kept on the GPU until it ends",
        bytes=size_bytes,
        place=scene.view.place_of_block(largest),
        evidence=("each batch leaves as much, and all of it goes before training goes on",),
        fix="keep only what the metric needs of each batch (logits.argmax(-1), a sum), or move it"
        f" to the CPU there: outputs.append(output.cpu()) (up to {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )


def _is_copied_for_training(scene: Scene, size_bytes: int, last_row: int) -> bool:
    """Whether as much was asked for at once after the last of them, and is there in the next backward pass: a
    rollout that is stacked.
    """
    allocations, peak_event = scene.device.allocations, scene.advice_event
    starts = scene.view.phases.span_start
    next_backward = int(starts[starts > peak_event].min(initial=len(scene.device.events)))
    later = scene.advice_rows[scene.advice_rows > last_row]
    is_as_large = np.abs(allocations.requested_bytes[later] / size_bytes - 1) <= _AS_LARGE
    return bool((is_as_large & (allocations.free_requested[later] > next_backward)).any())


def _rows_of_passes(scene: Scene) -> tuple[NDArray[np.int64], int]:
    """The allocations at the peak that such passes left, and of how many."""
    view, allocations, peak_event = scene.view, scene.device.allocations, scene.advice_event
    next_backward = view.phases.span_start[view.phases.span_start > peak_event]
    goes_by = int(next_backward.min(initial=len(scene.device.events)))
    in_passes = _requests_of_evaluation(scene)
    rows = scene.advice_rows
    rows = rows[(rows > in_passes.min(initial=len(allocations)))]
    rows = rows[allocations.free_requested[rows] < goes_by]
    requests = (allocations.stack, view.modules.module, allocations.requested_bytes)
    order = np.lexsort([column[rows] for column in requests])
    rows = rows[order]
    if not len(rows):
        return rows, 0
    is_other = np.any([np.diff(column[rows]) != 0 for column in requests], axis=0)
    group = np.append(0, np.cumsum(is_other))
    apart = np.diff(np.searchsorted(in_passes, rows))
    is_later_pass = np.append(False, ~is_other & (apart >= FEWEST_ALLOCATIONS))
    passes = 1 + np.bincount(group, weights=is_later_pass).astype(np.int64)
    is_of_many = passes[group] >= _FEWEST_PASSES
    largest = np.argmax(allocations.requested_bytes[rows] * is_of_many)
    return rows[is_of_many], int(passes[group][largest])


def _requests_of_evaluation(scene: Scene) -> NDArray[np.int64]:
    """What modules asked for without gradients before the peak, since they were last called with them."""
    modules, allocations = scene.view.modules, scene.device.allocations
    marked = np.flatnonzero(modules.marked & (allocations.born <= scene.advice_event))
    trained = marked[~modules.without_grad[marked]]
    return np.asarray(marked[marked > trained.max(initial=-1)])
