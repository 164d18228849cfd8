"""Graphs that are built and never used: evaluation without ``torch.no_grad``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_FEWEST_ALLOCATIONS = 8
_KEPT_SHARE = 0.5
"""Of what a pass asks for, so much alive at once means that the pass keeps what it computes."""


def unused_graph(view: Attribution) -> list[Finding]:
    """Evaluation passes that keep their activations as if a backward pass were to come."""
    allocations = view.device.allocations
    evaluates = view.phases.phase == Phase.EVALUATION
    rows = np.flatnonzero(evaluates)
    if len(rows) < _FEWEST_ALLOCATIONS:
        return []
    worst, kept_bytes, place_frame = 0, 0, -1
    for mine, alive in keeping_passes(view, rows):
        if alive <= worst:
            continue
        worst = alive
        largest = int(allocations.requested_bytes[mine].max())
        kept_bytes = max(0, alive - 2 * largest)
        place_frame = int(view.phases.frame[mine[0]])
    if not kept_bytes:
        return []
    saved = view.device.requested.peak_bytes - int(curve_without_graph(view, rows).max())
    place = view.place(place_frame)
    evidence = [
        f"a pass had {format_size(worst)} alive at once; without a graph about {format_size(worst - kept_bytes)}"
    ]
    if saved <= 0:
        evidence.append("this is not the run's peak: it does not lower that")
    return [
        Finding(
            id="unused_graph",
            verdict=Verdict.LIKELY,
            title=f"A graph is built and never used in evaluation: about {format_size(kept_bytes)} a pass",
            bytes=saved if saved > 0 else kept_bytes,
            place=place,
            evidence=tuple(evidence),
            fix="wrap that evaluation in torch.no_grad() or torch.inference_mode() "
            + (
                f"(peak about {format_size(saved)} lower)"
                if saved > 0
                else f"(about {format_size(kept_bytes)} a pass)"
            ),
        )
    ]


def keeping_passes(
    view: Attribution, rows: NDArray[np.int64]
) -> list[tuple[NDArray[np.int64], int]]:
    """The passes that keep most of what they ask for, as only a graph does, and the most bytes of
    each at once.

    A pass: some allocations with nothing else in between, begun anew where the first line comes
        again.
    """
    allocations = view.device.allocations
    if len(rows) < _FEWEST_ALLOCATIONS:
        return []
    stack = allocations.stack[rows]
    first = stack == stack[0]
    fresh = np.append(True, np.diff(rows) > 1) | (first & np.append(True, ~first[:-1]))
    found = []
    for mine in np.split(rows, np.flatnonzero(fresh)[1:]):
        if len(mine) < _FEWEST_ALLOCATIONS:
            continue
        _, alive = allocations.fullest(mine)
        if alive >= _KEPT_SHARE * int(allocations.requested_bytes[mine].sum()):
            found.append((mine, alive))
    return found


def curve_without_graph(view: Attribution, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Requested bytes after each event, had each of these been gone three requests later, as
    without a graph.
    """
    allocations = view.device.allocations
    born = allocations.born[rows]
    soon = np.append(born[3:], np.full(min(3, len(born)), len(view.device.events)))
    change = np.zeros(len(view.device.events) + 1, np.int64)
    earlier = soon < allocations.died[rows]
    np.add.at(change, soon[earlier], -allocations.requested_bytes[rows[earlier]])
    np.add.at(change, allocations.died[rows[earlier]], allocations.requested_bytes[rows[earlier]])
    return np.asarray(view.device.requested_curve + np.cumsum(change)[:-1])
