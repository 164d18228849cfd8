"""What a step made that is still there although the failed step has made its own: each step may
leave as much behind.
"""

from __future__ import annotations

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.failure.step_template import Template

_LASTING = (
    Category.PARAMETERS,
    Category.GRADIENTS,
    Category.OPTIMIZER_STATE,
    Category.WORKSPACE,
)


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
