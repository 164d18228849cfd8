"""Graphs of a rollout: a model acts many times, and then runs again on what it saw to be trained."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.graphs.losses_before_backward import LOSS_FRAME
from vramlens.analyses.findings.usage import part_of_heap
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_FEWEST_PASSES = 8
_LEAST_SHARE = 0.3
"""Of what is in use."""


def rollout_graphs(scene: Scene) -> Iterator[Finding]:
    """The activations of many equal passes that are alive when memory runs out, if the model has run again
    since, on another number of rows, and none of them ended in a loss.
    """
    if scene.ending_request is None:
        return
    starts, kept_rows = _passes(scene)
    if len(starts) <= _FEWEST_PASSES or not _is_rollout_and_update(scene, starts):
        return
    rows = kept_rows[scene.device.allocations.born[kept_rows] < starts[-1]]
    size_bytes = int(scene.device.allocations.requested_bytes[rows].sum())
    if size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    if scene.trace.stacks.within(LOSS_FRAME, scene.device.allocations.stack[rows]).any():
        return
    yield Finding(
        id="rollout_graphs",
        verdict=Verdict.LIKELY,
        title=f"{part_of_heap(size_bytes, scene.advice_heap)} are activations of {len(starts) - 1:,} passes that a"
        " rollout keeps for a backward pass, and the model runs again for its update",
        bytes=size_bytes,
        place=scene.view.place_of_block(
            int(rows[np.argmax(scene.device.allocations.requested_bytes[rows])])
        ),
        evidence=(
            "these passes are alike and have no loss; the latest is on another number of rows",
        ),
        fix="collect the rollout in torch.no_grad() (actions, their log-probabilities, values): the update"
        f" computes anew what its gradients need (about {format_size(size_bytes)} less)",
        extent=Extent(scene.advice_event, rows),
    )


def _passes(scene: Scene) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The events at which forward passes with gradients began since the last backward pass that ended, where
    the first line of the first module comes again; and what they asked for that is alive.
    """
    view, allocations = scene.view, scene.device.allocations
    last_end = int(view.phases.ends_before(scene.advice_event).max(initial=-1))
    is_since = (allocations.born > last_end) & (allocations.born < scene.advice_event)
    marked = np.flatnonzero(view.modules.trains & is_since & (view.phases.span < 0))
    if not len(marked):
        return marked, marked
    first = marked[0]
    is_first = view.phases.frame[marked] == view.phases.frame[first]
    is_first &= view.modules.module[marked] == view.modules.module[first]
    starts = allocations.born[marked[is_first & np.append(True, ~is_first[:-1])]]
    rows = np.intersect1d(scene.advice_rows, marked)
    return starts, rows[~view.names.placed[rows]]


def _is_rollout_and_update(scene: Scene, starts: NDArray[np.int64]) -> bool:
    """Whether all passes but the last begin with as large a request, and the last with a larger or smaller one:
    it may not have come to its end.
    """
    sizes = scene.device.allocations.requested_bytes[_requests_at(scene, starts)]
    return bool((sizes[:-1] == sizes[0]).all()) and sizes[-1] != sizes[0]


def _requests_at(scene: Scene, events: NDArray[np.int64]) -> NDArray[np.int64]:
    """The allocations that were requested at some events."""
    born = scene.device.allocations.born
    order = np.argsort(born, kind="stable")
    return np.asarray(order[np.searchsorted(born[order], events)])
