"""What an optimizer keeps for each parameter, by its class."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Category

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution

# State per parameter, in bytes per byte of parameter (torch/optim/*.py: _init_group).
STATES_OF = {
    "Adam": 2,
    "AdamW": 2,
    "NAdam": 2,
    "RAdam": 2,
    "Adamax": 2,
    "RMSprop": 1,
    "Adagrad": 1,
    "SGD": 0,
    "Lion": 1,
}
IN_8_BIT = ("Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "Lion")
"""bitsandbytes has these in 8 bits."""
MOST_STATES = 2
"""Of an optimizer that is not known: as many as AdamW has."""
_OF_MOMENTUM = 1
"""SGD keeps one where it has momentum, which no mark tells."""
_OPTIMIZER_MARK = re.compile(r"^Optimizer\.(step|zero_grad)#(\w+)\.")


def optimizer_marks(view: Attribution) -> list[tuple[str, str]]:
    """The marks that optimizers left in the recording: what was called, of which class."""
    names = np.unique(view.trace.annotations.name).tolist()
    marks = (_OPTIMIZER_MARK.match(view.trace.stacks.strings[name]) for name in names)
    return [(mark[1], mark[2]) for mark in marks if mark is not None]


def most_states(view: Attribution) -> int:
    """The most tensors a parameter that the optimizers may keep."""
    classes = {optimizer for _, optimizer in optimizer_marks(view)}
    if not classes:
        return MOST_STATES
    return max(max(_OF_MOMENTUM, STATES_OF.get(name, MOST_STATES)) for name in classes)


def parameter_bytes(view: Attribution, rows: NDArray[np.int64]) -> int:
    """What the parameters among these allocations take: those that are named, where any is; what was
    judged by its size alone may be a gradient.
    """
    is_parameter = view.categories.category[rows] == Category.PARAMETERS
    is_named = view.names.named[rows]
    if (is_parameter & is_named).any():
        is_parameter &= is_named
    return int(view.device.allocations.requested_bytes[rows[is_parameter]].sum())
