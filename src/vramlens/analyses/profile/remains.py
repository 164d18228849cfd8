"""What stays after each step of a profiler's trace: asked for in it, and not given back before the
trace ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution


@dataclass(frozen=True, slots=True)
class StepRemains:
    """What one step leaves allocated.

    Attributes:
        step: from 0; -1 before the first.
        bytes, allocations: how much and how many.
        largest: who asked for most of it: the operator, and the user's function where known.
        largest_bytes: how much that is.
    """

    step: int
    bytes: int
    allocations: int
    largest: str
    largest_bytes: int


def remains_of(view: Attribution) -> tuple[StepRemains, ...]:
    """One row a step that leaves something behind, in order."""
    device = view.device
    rows = device.allocations
    is_kept = (rows.died >= len(device.events)) & (rows.born >= 0)
    kept_rows = np.flatnonzero(is_kept)
    remains = []
    for step in np.unique(view.step[kept_rows]).tolist():
        in_step = kept_rows[view.step[kept_rows] == step]
        sums: dict[str, int] = {}
        for row in in_step.tolist():
            asker = _asker(view, row)
            sums[asker] = sums.get(asker, 0) + int(rows.requested_bytes[row])
        largest = max(sums, key=lambda name: (sums[name], name))
        total = int(rows.requested_bytes[in_step].sum())
        remains.append(
            StepRemains(
                step=step,
                bytes=total,
                allocations=len(in_step),
                largest=largest,
                largest_bytes=sums[largest],
            )
        )
    return tuple(remains)


def _asker(view: Attribution, row: int) -> str:
    """The operator that asked for an allocation, and the user's function that called it."""
    frames = view.trace.stacks.of(int(view.device.allocations.stack[row]))
    operator = frames[0].function if frames and not frames[0].file else "(no operator)"
    place = view.place_of_block(row)
    return operator if place is None else f"{operator}, {place}"
