"""Graphs that are built and never used: evaluation without ``torch.no_grad``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.modules import OUTSIDE
from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.evaluation_passes import (
    curve_without_graph,
    keeping_passes,
    without_retained,
)
from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.analyses.leaks.certainty import PATTERN
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size


def unused_graph(scene: Scene) -> Iterator[Finding]:
    """Evaluation passes that keep their activations as if a backward pass were to come."""
    view = scene.view
    is_evaluation = view.phases.phase == Phase.EVALUATION
    if view.modules.marked.any():  # only what a module computes can be a graph, inputs are none
        is_evaluation &= view.modules.marked & (view.modules.module != OUTSIDE)
    rows = np.flatnonzero(is_evaluation)
    passes = without_retained(view, keeping_passes(view, rows))
    if scene.failed_event is not None:
        passes = _surely_unused(view, passes, scene.failed_event)
    if not passes:
        return
    largest_pass, most_bytes = max(passes, key=lambda pair: pair[1])
    largest = int(view.device.allocations.requested_bytes[largest_pass].max())
    kept_bytes = max(0, most_bytes - 2 * largest)
    if not kept_bytes:
        return
    unused_rows = np.concatenate([pass_rows for pass_rows, _ in passes])
    saved = view.device.requested.peak_bytes - int(curve_without_graph(view, unused_rows).max())
    evidence = [
        f"a pass had {format_size(most_bytes)} in use at once; without a graph about "
        f"{format_size(most_bytes - kept_bytes)}"
    ]
    effect = f"peak about {format_size(saved)} lower"
    if saved <= 0:
        evidence.append("this is not the peak of the run, so it would not lower the peak")
        effect = f"about {format_size(kept_bytes)} per pass"
    yield Finding(
        id="unused_graph",
        verdict=Verdict.LIKELY,
        title="Evaluation builds an autograd graph that is never used: about "
        f"{format_size(kept_bytes)} per pass",
        bytes=saved if saved > 0 else kept_bytes,
        place=view.place(int(view.phases.frame[largest_pass[0]])),
        evidence=tuple(evidence),
        fix=f"wrap that evaluation in torch.no_grad() or torch.inference_mode() ({effect})",
        extent=Extent(view.device.allocations.fullest(largest_pass)[0], largest_pass),
    )


def _surely_unused(
    view: Attribution, passes: Sequence[tuple[NDArray[np.int64], int]], failed_event: int
) -> list[tuple[NDArray[np.int64], int]]:
    """The passes whose like no backward pass was to use: a step ended since, or all of it was given
    up. What a failed step computed may still have been waiting for its backward pass.
    """
    allocations = view.device.allocations
    steps = view.steps.starts if view.steps.source != PATTERN else view.steps.starts[:0]
    last_step = int(steps[steps <= failed_event].max(initial=0))
    first_lines = {
        int(allocations.stack[rows[0]])
        for rows, _ in passes
        if allocations.born[rows[-1]] < last_step
        or bool((allocations.free_requested[rows] < failed_event).all())
    }
    return [pair for pair in passes if int(allocations.stack[pair[0][0]]) in first_lines]
