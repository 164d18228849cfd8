"""The first optimizer step still to come: what it will ask for, told before it fails."""

from __future__ import annotations

import re

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

# State per parameter, in bytes per byte of parameter (torch/optim/*.py: _init_group).
_STATES = {
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
_OPTIMIZER_MARK = re.compile(r"^Optimizer\.(step|zero_grad)#(\w+)\.")


def first_step_to_come(view: Attribution) -> list[Finding]:
    """What the first ``optimizer.step()`` adds, when the recording ends with gradients but
    before one.
    """
    if not len(view.phases.span_start) or (view.phases.phase == Phase.OPTIMIZER).any():
        return []
    names = [view.trace.stacks.strings[i] for i in np.unique(view.trace.annotations.name).tolist()]
    marks = [match for name in names if (match := _OPTIMIZER_MARK.match(name))]
    if any(match[1] == "step" for match in marks):
        return []
    allocations = view.device.allocations
    gradients = view.categories.category == Category.GRADIENTS
    waiting = allocations.died == len(view.device.events)
    held = int(allocations.requested_bytes[gradients & waiting].sum())
    parameters = view.categories.category == Category.PARAMETERS
    sizes, counts = np.unique(allocations.requested_bytes[parameters], return_counts=True)
    weights = int((sizes * counts).sum())
    if not held or not weights:
        return []
    kind = marks[0][2] if marks else ""
    known = kind in _STATES
    factor = _STATES.get(kind, 2)
    needed = factor * weights
    if not needed:
        return []
    who = kind if known else "an Adam-type optimizer"
    return [
        Finding(
            id="first_optimizer_step",
            verdict=Verdict.LIKELY if known else Verdict.POSSIBLE,
            title=f"The first optimizer.step() is still to come and will need {format_size(needed)} more with {who}",
            bytes=needed,
            evidence=(
                f"{format_size(weights)} of parameters with gradients, {factor} states each; "
                "the recording holds no optimizer step",
            ),
            fix="make room for it now (smaller batch, 8-bit optimizer), or take one step first to see it fail early",
        )
    ]
