"""The first optimizer step still to come: what it will ask for, told before it fails."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene
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
_STATES_OF_ADAM = 2
_OPTIMIZER_MARK = re.compile(r"^Optimizer\.(step|zero_grad)#(\w+)\.")


def first_step_to_come(scene: Scene) -> Iterator[Finding]:
    """What the first ``optimizer.step()`` adds, when the recording ends with gradients but
    before one.
    """
    view = scene.view
    if not len(view.phases.span_start) or (view.phases.phase == Phase.OPTIMIZER).any():
        return
    marks = _optimizer_marks(view)
    if any(mark[1] == "step" for mark in marks):
        return
    sizes = view.device.allocations.requested_bytes
    is_last = view.device.allocations.died == len(view.device.events)
    is_gradient = view.categories.category == Category.GRADIENTS
    if not sizes[is_gradient & is_last].any():
        return
    parameter_bytes = int(sizes[view.categories.category == Category.PARAMETERS].sum())
    optimizer = marks[0][2] if marks else ""
    is_known = optimizer in _STATES
    states = _STATES.get(optimizer, _STATES_OF_ADAM)
    needed = states * parameter_bytes
    if not needed:
        return
    name = optimizer if is_known else "an Adam-type optimizer"
    yield Finding(
        id="first_optimizer_step",
        verdict=Verdict.LIKELY if is_known else Verdict.POSSIBLE,
        title="The first optimizer.step() has not run yet and will need "
        f"{format_size(needed)} more with {name}",
        bytes=needed,
        evidence=(
            f"{format_size(parameter_bytes)} of parameters with gradients, {states} optimizer "
            "states each; "
            "the recording contains no optimizer step",
        ),
        fix="free memory for it now (smaller batch, 8-bit optimizer), or run one step first to see "
        "it fail early",
    )


def _optimizer_marks(view: Attribution) -> list[re.Match[str]]:
    """The marks that optimizers left in the recording: what was called, of which class."""
    names = np.unique(view.trace.annotations.name).tolist()
    marks = (_OPTIMIZER_MARK.match(view.trace.stacks.strings[name]) for name in names)
    return [mark for mark in marks if mark is not None]
