"""Short-lived buffers of operators (cuDNN workspaces, casts, intermediate results) and their
share of the peak.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK
from vramlens.units import counted, format_size

_BRIEF_EVENTS = 12
_LEAST_SHARE = 0.05
_CONVOLUTION = re.compile(r"torch[/\\]nn[/\\]modules[/\\]conv\.py:")


def operator_buffers(view: Attribution) -> list[Finding]:
    """Buffers that were alive at the peak and gone a few events later, as one finding."""
    allocations, peak = view.device.allocations, view.device.requested
    if peak.peak_event < 0:
        return []
    alive = allocations.alive_after(peak.peak_event)
    ended = allocations.died[alive] < len(
        view.device.events
    )  # what the recording ends with may have lived on
    brief = ended & (
        allocations.died[alive] - np.maximum(allocations.born[alive], 0) <= _BRIEF_EVENTS
    )
    scratch, comes_again = _scratch(view)
    brief &= ~(scratch & comes_again)[alive]  # what every step's kernels need cannot be avoided
    looped = np.isin(view.categories.category[alive], (Category.TEMPORARIES, Category.WORKSPACE))
    rows = alive[brief & looped]
    total = int(allocations.requested_bytes[rows].sum())
    if total < _LEAST_SHARE * peak.peak_bytes:
        return []
    largest = int(rows[allocations.requested_bytes[rows].argmax()])
    stacks = view.trace.stacks
    convolution = stacks.any_frame(stacks.mark_frames(_CONVOLUTION))
    stack = int(allocations.stack[largest])
    backward = bool(view.phases.inferred[largest]) or stack == NO_STACK  # whose stacks say nothing
    tried = bool(scratch[largest]) and bool(convolution.any() if backward else convolution[stack])
    fix = (
        "torch.backends.cudnn.benchmark = False (or a smaller batch): benchmarking picks fast algorithms with large "
        "workspaces"
        if tried
        else "split that operation into pieces (chunks of the batch or of the vocabulary), or use a fused version of it"
    )
    share = 100 * total / peak.peak_bytes
    return [
        Finding(
            id="operator_buffers",
            verdict=Verdict.PROVEN,
            title=f"{format_size(total)} of the peak ({share:.0f} %) are buffers that live for one operation only",
            bytes=total,
            place=view.place(int(view.phases.frame[largest])),
            evidence=(
                f"{counted(len(rows), 'buffer')}, the largest "
                f"{format_size(int(allocations.requested_bytes[largest]))}, each gone within {_BRIEF_EVENTS} events",
            ),
            fix=f"{fix} (up to {format_size(total)})",
        )
    ]


def _scratch(view: Attribution) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which allocations one kernel works in (nothing else is asked for while they live), and which
    sizes come again.

    ``cudnn.benchmark`` tries sizes in the first step that no later step asks for.
    """
    allocations = view.device.allocations
    births = np.sort(allocations.born[allocations.born >= 0])
    others = np.searchsorted(births, allocations.free_requested) - np.searchsorted(
        births, allocations.born, "right"
    )
    scratch = (allocations.born >= 0) & (others == 0)
    pairs = np.unique(np.stack((allocations.requested_bytes[scratch], view.step[scratch])), axis=1)
    sizes, steps = np.unique(pairs[0], return_counts=True)
    return scratch, np.isin(allocations.requested_bytes, sizes[steps > 1])
