"""Objects whose input stays on the GPU although the model has been through with it: requests that were answered."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vramlens.analyses.attribution.training import Training, turns_with
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.holders.waiting_objects import (
    ObjectTensors,
    largest_attribute,
)
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import counted, format_size

_FEWEST_OBJECTS = 16
"""That came one after the other, with passes of a model between: fewer may be worked on at once."""


@after_failure
def spent_inputs(scene: Scene) -> Iterator[Finding]:
    """What objects keep in one attribute that no model has computed, if passes of a model came between them."""
    inputs = largest_attribute(scene)
    if inputs is None or not _are_spent(scene, inputs):
        return
    yield Finding(
        id="spent_inputs",
        verdict=Verdict.LIKELY,
        title=f"{counted(len(inputs.rows), 'tensor')} in .{inputs.attribute} of {inputs.owner} hold"
        f" {scene.part_of_heap(inputs.size_bytes)}",
        bytes=inputs.size_bytes,
        place=scene.view.place_of_block(int(inputs.rows[-1])),
        evidence=("no model made them, and the model ran after each: their work is probably done",),
        fix=f"set .{inputs.attribute} to None when the work on its object is done; or let go of"
        " the objects: a finished task, a timer's callback, a context variable or a list of"
        f" results may still have them (up to {format_size(inputs.size_bytes)} less)",
        extent=scene.extent(inputs.rows),
    )


def _are_spent(scene: Scene, inputs: ObjectTensors) -> bool:
    """Whether a program that does not train made them between many passes of its model."""
    view, rows = scene.view, inputs.rows
    if view.training == Training.SEEN or view.modules.marked[rows].any():
        return False
    begins, born = scene.pass_begins, scene.device.allocations.born[rows]
    has_run_since = np.searchsorted(begins, born, side="right") < len(begins)
    return int(turns_with(begins, born[has_run_since])) >= _FEWEST_OBJECTS
