"""Gradients that stay through the next forward pass, although the optimizer is done with them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.training import Training
from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.analyses.leaks.certainty import PATTERN
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_HIGHEST_STEPS = 200
"""Only so many steps are looked at, those with the highest peaks: the bytes saved are then at
least those told.
"""
_LEAST_SHARE = 0.01


def gradients_kept(scene: Scene) -> Iterator[Finding]:
    """What ``zero_grad(set_to_none=True)`` before the forward pass would take off the peak."""
    view = scene.view
    peak = view.device.requested
    if view.training == Training.ABSENT or len(view.steps) < 2:
        return
    if view.steps.source == PATTERN:
        return  # what repeats may be a part of one step: its gradients are being made
    if not len(view.phases.span_start):
        return
    gradients = _Gradients(view)
    if not len(gradients.rows):
        return
    saved = peak.peak_bytes - int(gradients.curve_when_dropped().max())
    if saved < _LEAST_SHARE * peak.peak_bytes:
        return
    allocations, rows = view.device.allocations, gradients.rows
    at_peak = (allocations.born[rows] <= peak.peak_event) & (
        allocations.died[rows] > peak.peak_event
    )
    old_rows = rows[at_peak]
    old_bytes = scene.bytes_of(old_rows)
    yield Finding(
        id="gradients_kept",
        verdict=Verdict.LIKELY,
        title="Gradients of the previous step stay in memory during the forward pass: "
        f"{format_size(saved)} of {scene.peak_name}",
        bytes=saved,
        evidence=()
        if format_size(old_bytes) == format_size(saved)
        else (f"{format_size(old_bytes)} of these gradients were in use at {scene.peak_name}",),
        fix="call optimizer.zero_grad(set_to_none=True) before the forward pass, right after "
        f"optimizer.step() (peak about {format_size(saved)} lower)",
        extent=Extent(peak.peak_event, old_rows),
    )


class _Gradients:
    """The gradients that outlive the step that made them.

    Attributes:
        rows: their allocations.
    """

    def __init__(self, view: Attribution) -> None:
        allocations, phases, steps = view.device.allocations, view.phases, view.steps
        freed = allocations.free_requested
        last_step = np.where(freed >= len(view.device.events), len(steps), steps.of(freed))
        is_gradient = (view.categories.category == Category.GRADIENTS) & (phases.span >= 0)
        self.rows = np.flatnonzero(is_gradient & (last_step > view.step))
        self._view = view
        self._last_step = last_step[self.rows]
        span = phases.span[self.rows]
        length = np.maximum(phases.span_last[span] - phases.span_start[span], 1)
        self._place_in_span = (allocations.born[self.rows] - phases.span_start[span]) / length
        self._span_step = steps.of(phases.span_start)

    def curve_when_dropped(self) -> NDArray[np.int64]:
        """Requested bytes after each event, had each gradient been gone from the start of each
        later step until that step's backward pass would have made it again, at the place in the
        pass where it was first made.
        """
        device, steps = self._view.device, self._view.steps
        change = np.zeros(len(device.events) + 1, np.int64)
        highest = np.maximum.reduceat(device.requested_curve, steps.starts)
        for step in np.argsort(highest, kind="stable")[-_HIGHEST_STEPS:].tolist():
            is_old = (self._view.step[self.rows] < step) & (self._last_step >= step)
            sizes = device.allocations.requested_bytes[self.rows[is_old]]
            gone_until = np.minimum(self._made_again(step, is_old), int(steps.ends[step]))
            change[int(steps.starts[step])] -= int(sizes.sum())
            np.add.at(change, gone_until, sizes)
        return np.asarray(device.requested_curve + np.cumsum(change)[:-1])

    def _made_again(self, step: int, is_old: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The event at which each gradient is needed again in a step: when it is given back, or
        when the step's first backward pass makes it.
        """
        freed = self._view.device.allocations.free_requested[self.rows[is_old]]
        spans = np.flatnonzero(self._span_step == step)
        if not len(spans):
            return freed
        phases, first = self._view.phases, spans[0]
        length = phases.span_last[first] - phases.span_start[first]
        born_again = phases.span_start[first] + self._place_in_span[is_old] * length
        return np.asarray(np.minimum(freed, born_again.astype(np.int64)))
