"""The first optimizer step still to come: what it will ask for, told before it fails."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.optimizer_state import (
    MOST_STATES,
    STATES_OF,
    optimizer_marks,
    parameter_bytes,
)
from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size


def first_step_to_come(scene: Scene) -> Iterator[Finding]:
    """What the first ``optimizer.step()`` adds, when the recording ends with gradients but
    before one.
    """
    view = scene.view
    if not len(view.phases.span_start) or (view.phases.phase == Phase.OPTIMIZER).any():
        return
    marks = optimizer_marks(view)
    if any(called == "step" for called, _ in marks):
        return
    sizes = view.device.allocations.requested_bytes
    is_last = view.device.allocations.died == len(view.device.events)
    is_gradient = view.categories.category == Category.GRADIENTS
    if not sizes[is_gradient & is_last].any():
        return
    model_bytes = parameter_bytes(view, np.arange(len(sizes)))
    optimizer = marks[0][1] if marks else ""
    is_known = optimizer in STATES_OF
    states = STATES_OF.get(optimizer, MOST_STATES)
    needed = states * model_bytes
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
            f"{format_size(model_bytes)} of parameters with gradients, {states} optimizer "
            "states each; "
            "the recording contains no optimizer step",
        ),
        fix="free memory for it now (smaller batch, 8-bit optimizer), or run one step first to see "
        "it fail early",
    )
