"""States that earlier optimizers keep of the parameters that a later one trains."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import counted, format_size

_STATE = re.compile(r"^[^.\[]+\.(?P<state>[^\[]+\[(?P<parameter>.+)\])$")
"""``optimizer_2.exp_avg[model.weight]``: whose state it is, and which (capture/names/tensor_names.py)."""
_LEAST_SHARE = 0.15
"""Of what is in use."""
_FEWEST_EARLIER = 2
"""Optimizers: two that step by turns may be meant."""
_FEWEST_PASSES = 2
"""Backward passes between the states of one optimizer and of the next: those of a pair that works together
come in one step.
"""


@after_failure
def earlier_optimizers(scene: Scene) -> Iterator[Finding]:
    """The states that several optimizers keep of the same parameters when memory runs out, but for the latest
    of each.
    """
    rows, optimizers = _earlier_states(scene)
    size_bytes = scene.bytes_of(rows)
    if (
        optimizers < _FEWEST_EARLIER
        or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes
    ):
        return
    yield Finding(
        id="earlier_optimizers",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are states of"
        f" {counted(optimizers, 'earlier optimizer')} for parameters that a later one trains",
        bytes=size_bytes,
        place=scene.view.place_of_block(int(rows[-1])),
        evidence=("several optimizers that are alive have the same states of the same parameters",),
        fix="let go of an optimizer before the next one is made: a learning-rate scheduler, a list"
        " or a closure may still hold it (keep numbers instead of these); or keep one optimizer"
        f" and reset its lr (about {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )


def _earlier_states(scene: Scene) -> tuple[NDArray[np.int64], int]:
    """The states that are not the latest of their parameter, where several backward passes ran between them, and
    how many optimizers have any.
    """
    names, born = scene.view.names, scene.device.allocations.born
    passes_before = scene.view.phases.passes_before(born, scene.advice_event)
    parameters = {names.name(row) for row in names.of_kind(TensorKind.PARAMETER).tolist()}
    states = np.intersect1d(scene.advice_rows, names.of_kind(TensorKind.OPTIMIZER_STATE))
    latest: dict[str, int] = {}
    earlier: list[int] = []
    for row in states.tolist():  # in order of birth
        match = _STATE.match(names.name(row))
        if match is None or match["parameter"] not in parameters:
            continue  # of a raw tensor only its place in a group is known, which others have, too
        before = latest.get(match["state"])
        passes = 0 if before is None else passes_before[row] - passes_before[before]
        if before is not None and passes >= _FEWEST_PASSES:
            earlier.append(before)
        latest[match["state"]] = row
    optimizers = {names.name(row).partition(".")[0] for row in earlier}
    return np.array(sorted(earlier), np.int64), len(optimizers)
