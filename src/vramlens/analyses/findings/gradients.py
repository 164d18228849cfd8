"""Gradients that stay through the next forward pass, although the optimizer is done with them."""

from __future__ import annotations

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_HIGHEST_STEPS = 200
"""Only so many steps are looked at, those with the highest peaks: the bytes saved are then at
least those told.
"""


def gradients_kept(view: Attribution) -> list[Finding]:
    """What ``zero_grad(set_to_none=True)`` before the forward pass would take off the peak.

    A gradient that outlives its step counts as gone from the start of each later step until that
    step's backward pass would have made it again, at the place in the pass where it was first made.
    """
    allocations, phases, steps = view.device.allocations, view.phases, view.steps
    if len(steps) < 2 or not len(phases.span_start):
        return []
    end_step = np.where(
        allocations.free_requested >= len(view.device.events),
        len(steps),
        steps.of(allocations.free_requested),
    )
    is_gradient = (view.categories.category == Category.GRADIENTS) & (phases.span >= 0)
    rows = np.flatnonzero(is_gradient & (end_step > view.step))
    if not len(rows):
        return []
    span = phases.span[rows]
    length = np.maximum(phases.span_last[span] - phases.span_start[span], 1)
    place_in_span = (allocations.born[rows] - phases.span_start[span]) / length
    span_step = steps.of(phases.span_start)
    change = np.zeros(len(view.device.events) + 1, np.int64)
    highest = np.maximum.reduceat(view.device.requested_curve, steps.starts)
    for step in np.argsort(highest, kind="stable")[-_HIGHEST_STEPS:].tolist():
        kept = (view.step[rows] < step) & (end_step[rows] >= step)
        spans = np.flatnonzero(span_step == step)
        start = int(steps.starts[step])
        gone_until = allocations.free_requested[rows[kept]]
        if len(spans):
            first = spans[0]
            again = phases.span_start[first] + place_in_span[kept] * (
                phases.span_last[first] - phases.span_start[first]
            )
            gone_until = np.minimum(gone_until, again.astype(np.int64))
        change[start] -= int(allocations.requested_bytes[rows[kept]].sum())
        np.add.at(
            change,
            np.minimum(gone_until, int(steps.ends[step])),
            allocations.requested_bytes[rows[kept]],
        )
    curve = view.device.requested_curve
    saved = view.device.requested.peak_bytes - int((curve + np.cumsum(change)[:-1]).max())
    through_peak = rows[
        (allocations.born[rows] <= view.device.requested.peak_event)
        & (allocations.died[rows] > view.device.requested.peak_event)
    ]
    held = int(allocations.requested_bytes[through_peak].sum())
    if saved * 100 < view.device.requested.peak_bytes:
        return []
    return [
        Finding(
            id="gradients_kept",
            verdict=Verdict.LIKELY,
            title=f"Gradients of the step before stay through the forward pass: {format_size(saved)} of the peak",
            bytes=saved,
            evidence=(
                f"{format_size(held)} of gradients older than their step were alive at the peak",
            ),
            fix="call optimizer.zero_grad(set_to_none=True) before the forward pass, right after optimizer.step() "
            f"(peak about {format_size(saved)} lower)",
        )
    ]
