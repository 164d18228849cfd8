"""The first optimizer step still to come: what it will ask for, told before it fails."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.optimizer_state import (
    IN_8_BIT,
    MOST_STATES,
    STATES_OF,
    optimizer_marks,
)
from vramlens.analyses.attribution.trainable import stepped_bytes
from vramlens.analyses.attribution.training import Training
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.trace.meta import Meta
from vramlens.units import format_size


def first_step_to_come(scene: Scene) -> Iterator[Finding]:
    """What the first ``optimizer.step()`` adds, when the recording ends with gradients but
    before one.
    """
    view = scene.view
    if view.training == Training.ABSENT or not len(view.phases.span_start):
        return
    if view.phases.optimizer_ran or _has_stepped(view.trace.meta):
        return
    marks = optimizer_marks(view)
    if any(called == "step" for called, _ in marks):
        return
    sizes = view.device.allocations.requested_bytes
    is_last = view.device.allocations.died == len(view.device.events)
    is_gradient = view.categories.category == Category.GRADIENTS
    if not sizes[is_gradient & is_last].any():
        return
    model_bytes = stepped_bytes(view, np.arange(len(sizes)), len(view.device.events))
    optimizer = marks[0][1] if marks else ""
    is_known = optimizer in STATES_OF
    states = STATES_OF.get(optimizer, MOST_STATES)
    needed = states * model_bytes
    if not needed:
        return
    name = optimizer if is_known else "an Adam-type optimizer"
    in_8_bit = "" if is_known and optimizer not in IN_8_BIT else ", 8-bit optimizer"
    yield Finding(
        id="first_optimizer_step",
        verdict=Verdict.LIKELY if is_known else Verdict.POSSIBLE,
        title="The first optimizer.step() has not run yet and will need "
        f"{format_size(needed)} more with {name}",
        bytes=needed,
        evidence=(
            f"{format_size(model_bytes)} of parameters to train, {states} optimizer states each; "
            "the recording contains no optimizer step",
        ),
        fix=f"free memory for it now (smaller batch{in_8_bit}), or run one step first to see it"
        " fail early",
    )


def _has_stepped(meta: Meta) -> bool:
    """Whether an optimizer's steps were counted while it was recorded: plain SGD asks for no memory in them."""
    return meta.step_source == "optimizer" and bool(meta.step)
