"""Graphs that are built and never used: evaluation without ``torch.no_grad``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution import Attribution
from vramlens.analyses.finding import Finding
from vramlens.analyses.phases import Phase
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
    # A pass: evaluation allocations with nothing else in between, begun anew where the first line comes again.
    stack = allocations.stack[rows]
    first = stack == stack[0]
    fresh = np.append(True, np.diff(rows) > 1) | (first & np.append(True, ~first[:-1]))
    number = np.cumsum(fresh) - 1
    worst, kept_bytes, place_frame = 0, 0, -1
    for index in range(int(number[-1]) + 1):
        mine = rows[number == index]
        if len(mine) < _FEWEST_ALLOCATIONS:
            continue
        moment, alive = _fullest(view, mine)
        total = int(allocations.requested_bytes[mine].sum())
        if alive < _KEPT_SHARE * total or alive <= worst:
            continue
        worst = alive
        largest = int(allocations.requested_bytes[mine].max())
        kept_bytes = max(0, alive - 2 * largest)
        place_frame = int(view.phases.frame[mine[0]])
        reaches_peak = int(view.device.requested_curve[moment])
    if not kept_bytes:
        return []
    peak = view.device.requested.peak_bytes
    saved = min(kept_bytes, peak - _peak_outside(view, rows)) if reaches_peak >= peak else 0
    place = view.place(place_frame)
    evidence = [f"a pass had {format_size(worst)} alive at once; without a graph about {format_size(worst - kept_bytes)}"]
    if saved <= 0:
        evidence.append("this is not the run's peak: freeing it does not lower the peak")
    return [
        Finding(
            id="unused_graph",
            verdict="likely",
            title=f"A graph is built and never used in evaluation: about {format_size(kept_bytes)} a pass",
            bytes=max(saved, 0) or kept_bytes,
            place=place,
            evidence=tuple(evidence),
            fix=f"wrap that evaluation in torch.no_grad() or torch.inference_mode() (about {format_size(kept_bytes)})",
        )
    ]


def _fullest(view: Attribution, rows: NDArray[np.int64]) -> tuple[int, int]:
    """The event at which most bytes of some allocations are alive, and how many."""
    allocations = view.device.allocations
    when = np.concatenate((allocations.born[rows], allocations.died[rows]))
    sizes = allocations.requested_bytes[rows]
    order = np.argsort(when, kind="stable")
    running = np.cumsum(np.concatenate((sizes, -sizes))[order])
    best = int(running.argmax())
    return int(when[order[best]]), int(running[best])


def _peak_outside(view: Attribution, rows: NDArray[np.int64]) -> int:
    """The highest requested bytes while none of some allocations is alive."""
    allocations = view.device.allocations
    change = np.zeros(len(view.device.events) + 1, np.int64)
    np.add.at(change, allocations.born[rows], 1)
    np.add.at(change, allocations.died[rows], -1)
    idle = np.cumsum(change)[:-1] == 0
    curve = view.device.requested_curve
    return int(curve[idle].max(initial=0))
