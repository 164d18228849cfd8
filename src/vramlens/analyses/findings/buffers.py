"""Short-lived buffers of operators (cuDNN workspaces, casts, intermediate results) and their
share of the peak.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK
from vramlens.units import format_size

_BRIEF_EVENTS = 12
_LEAST_SHARE = 0.05
_CONVOLUTION = re.compile(r"torch[/\\]nn[/\\]modules[/\\]conv\.py:")
_NO_BENCHMARK = (
    "torch.backends.cudnn.benchmark = False (or a smaller batch): benchmarking picks fast "
    "algorithms with large workspaces"
)
_SPLIT = (
    "split that operation into pieces (chunks of the batch or of the vocabulary), or use a "
    "fused version of it"
)


def operator_buffers(scene: Scene) -> Iterator[Finding]:
    """Buffers that were alive at the peak and gone a few events later, as one finding."""
    view = scene.view
    sizes, peak = view.device.allocations.requested_bytes, view.device.requested
    if peak.peak_event < 0:
        return
    is_scratch, comes_again = _scratch(view)
    rows = _brief_rows(view, peak.peak_event)
    rows = rows[~(is_scratch & comes_again)[rows]]  # what every step needs cannot be avoided
    total = int(sizes[rows].sum())
    if total < _LEAST_SHARE * peak.peak_bytes:
        return
    largest = int(rows[sizes[rows].argmax()])
    is_workspace = bool(is_scratch[largest]) and _may_be_convolution(view, largest)
    if is_workspace and not _are_tried(view, largest, is_scratch):
        return  # where memory is short, cuDNN goes on with a smaller one
    fix = _NO_BENCHMARK if is_workspace else _SPLIT
    share = 100 * total / peak.peak_bytes
    is_one = len(rows) == 1
    are_buffers = "is one buffer that exists" if is_one else "are buffers that exist"
    yield Finding(
        id="operator_buffers",
        verdict=Verdict.PROVEN,
        title=f"{format_size(total)} of {scene.peak_name} ({share:.0f}%) {are_buffers} only "
        "during one operation",
        bytes=total,
        place=view.place_of_block(int(largest)),
        evidence=(
            f"it was freed within {_BRIEF_EVENTS} events"
            if is_one
            else f"{len(rows):,} buffers, the largest {format_size(int(sizes[largest]))}, "
            f"each freed within {_BRIEF_EVENTS} events",
        ),
        fix=f"{fix} (up to {format_size(total)})",
        extent=Extent(peak.peak_event, rows),
    )


def _brief_rows(view: Attribution, event: int) -> NDArray[np.int64]:
    """The temporaries alive after an event that are gone a few events after they came."""
    allocations = view.device.allocations
    alive = allocations.alive_after(event)
    died, born = allocations.died[alive], np.maximum(allocations.born[alive], 0)
    is_ended = died < len(view.device.events)  # what the recording ends with may have lived on
    is_brief = died - born <= _BRIEF_EVENTS
    kinds = (Category.TEMPORARIES, Category.WORKSPACE)
    is_temporary = np.isin(view.categories.category[alive], kinds)
    return alive[is_ended & is_brief & is_temporary]


def _may_be_convolution(view: Attribution, row: int) -> bool:
    stacks = view.trace.stacks
    is_convolution = stacks.any_frame(stacks.mark_frames(_CONVOLUTION))
    stack = int(view.device.allocations.stack[row])
    if view.phases.inferred[row] or stack == NO_STACK:  # a backward pass, whose stacks say nothing
        return bool(is_convolution.any())
    return bool(is_convolution[stack])


def _are_tried(view: Attribution, row: int, is_scratch: NDArray[np.bool_]) -> bool:
    """Whether the call that a workspace is of asked for another one, too: benchmarking tries several
    algorithms, one after the other.
    """
    stack = view.device.allocations.stack
    near = [beside for beside in (row - 1, row + 1) if 0 <= beside < len(stack)]
    return any(is_scratch[beside] and stack[beside] == stack[row] for beside in near)


def _scratch(view: Attribution) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which allocations one kernel works in (nothing else is asked for while they live), and which
    sizes come again.

    ``cudnn.benchmark`` tries sizes in the first step that no later step asks for.
    """
    allocations = view.device.allocations
    # Rows are in order of birth: the next one's is the first after an allocation's own.
    next_birth = np.append(allocations.born[1:], len(view.device.events))
    is_scratch = (allocations.born >= 0) & (next_birth >= allocations.free_requested)
    sizes_and_steps = np.stack((allocations.requested_bytes[is_scratch], view.step[is_scratch]))
    size_of_pair = np.unique(sizes_and_steps, axis=1)[0]
    sizes, steps = np.unique(size_of_pair, return_counts=True)
    return is_scratch, np.isin(allocations.requested_bytes, sizes[steps > 1])
