"""Graphs of a rollout: a model acts many times, and then runs again on what it saw to be trained."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.graphs.losses_before_backward import LOSS_FRAME
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_FEWEST_PASSES = 8
_LEAST_SHARE = 0.3
"""Of what is in use."""


@after_failure
def rollout_graphs(scene: Scene) -> Iterator[Finding]:
    """The activations of many equal passes that are alive when memory runs out, if the model has run again
    since, on more rows, and none of them ended in a loss.
    """
    firsts, kept_rows = _passes(scene)
    if len(firsts) <= _FEWEST_PASSES or not _are_rollout_and_update(scene, firsts):
        return
    allocations, view = scene.device.allocations, scene.view
    rows = kept_rows[kept_rows < firsts[-1]]
    size_bytes = scene.bytes_of(rows)
    if size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    if scene.trace.stacks.within(LOSS_FRAME, allocations.stack[rows]).any():
        return
    passes = len(firsts) - 1
    yield Finding(
        id="rollout_graphs",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are activations of {passes:,} passes of a"
        " rollout: it keeps its graph, and the model now runs again for its update",
        bytes=size_bytes,
        place=view.place_of_block(allocations.largest_of(rows)),
        evidence=("these passes are alike and have no loss; the latest is on more rows",),
        fix="if no gradient goes through the rollout (actions are samples, and the update computes"
        " their log-probabilities anew), collect it in torch.no_grad() (about"
        f" {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )


def _passes(scene: Scene) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The request that each forward pass with gradients began with since the last backward pass that ended,
    where the first line of the first module comes again; and what they asked for that is alive.
    """
    view, allocations = scene.view, scene.device.allocations
    is_since = (allocations.born > scene.last_backward_end) & (
        allocations.born < scene.advice_event
    )
    marked = np.flatnonzero(view.modules.trains & is_since & (view.phases.span < 0))
    if not len(marked):
        return marked, marked
    first = marked[0]
    is_first = view.phases.frame[marked] == view.phases.frame[first]
    is_first &= view.modules.module[marked] == view.modules.module[first]
    firsts = marked[is_first & np.append(True, ~is_first[:-1])]
    rows = np.intersect1d(scene.advice_rows, marked)
    return firsts, rows[~view.names.placed[rows]]


def _are_rollout_and_update(scene: Scene, firsts: NDArray[np.int64]) -> bool:
    """Whether all passes but the last begin with as large a request, and the last with a larger one (it may not
    have come to its end); and no other model runs between, as one that the gradients go through.
    """
    sizes = scene.device.allocations.requested_bytes[firsts]
    if (sizes[:-1] != sizes[0]).any() or sizes[-1] <= sizes[0]:
        return False
    modules = scene.view.modules
    between = np.arange(firsts[0], firsts[-1])
    roots = modules.root[between[modules.trains[between]]]
    return len(np.unique(roots)) == 1
