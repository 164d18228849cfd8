"""What a step made that is still there although the failed step has made its own: each step may
leave as much behind.
"""

from __future__ import annotations

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.failure.step_template import Template
from vramlens.trace import TensorKind

_LASTING = (
    Category.PARAMETERS,
    Category.GRADIENTS,
    Category.OPTIMIZER_STATE,
    Category.WORKSPACE,
)


_SLIGHT = 0.01
"""Of what a pass asks for: a loss, metrics."""


def passes_give_back(view: Attribution, template: Template) -> bool:
    """Whether the passes before the failed one gave back all but parameters and gradients, which the
    first makes and the others only add to: the micro-batches of one step. More of them need no more.
    """
    if template.whole_steps:
        return False
    allocations, failed_event = view.device.allocations, template.failed.end
    lasts = view.categories.category == Category.WORKSPACE
    lasts[view.names.of_kind(TensorKind.PARAMETER, TensorKind.BUFFER, TensorKind.GRADIENT)] = True
    for number, span in enumerate(template.spans[:-1]):
        is_kept = allocations.died[span.rows] >= failed_event
        if not number:
            is_kept &= ~lasts[span.rows]
        asked_bytes = int(allocations.requested_bytes[span.rows].sum())
        if allocations.requested_bytes[span.rows[is_kept]].sum() > _SLIGHT * asked_bytes:
            return False
    return True


def left_behind_bytes(view: Attribution, template: Template) -> int:
    """The bytes of the template that are there beside those of the failed step's same requests.

    A variable that is set again gives up what it held as soon as the new is there: a buffer or a
    list does not.
    """
    allocations, failed_event = view.device.allocations, template.failed.end
    theirs, ours = template.pairs
    is_kept = (allocations.died[theirs] >= failed_event) & (allocations.died[ours] >= failed_event)
    is_kept &= ~np.isin(view.categories.category[theirs], _LASTING)
    return int(allocations.requested_bytes[theirs[is_kept]].sum())
