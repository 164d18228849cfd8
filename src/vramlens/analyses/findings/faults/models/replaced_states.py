"""States that an optimizer keeps of parameters which it no longer has."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size

_OF_NO_GROUP = re.compile(r"\[unknown parameter\]")
"""A state whose parameter is in no group of its optimizer (capture/names/tensor_names.py)."""
_LEAST_SHARE = 0.2
"""Of what is in use."""


@after_failure
def replaced_states(scene: Scene) -> Iterator[Finding]:
    """The states of parameters that no group has when memory runs out, and these parameters, if both are
    much of what is in use.
    """
    names, allocations, rows = scene.view.names, scene.device.allocations, scene.advice_rows
    states = np.intersect1d(rows, names.of_kind(TensorKind.OPTIMIZER_STATE))
    is_left = [bool(_OF_NO_GROUP.search(names.name(row))) for row in states.tolist()]
    states = states[np.array(is_left, np.bool_)]
    # A state's key is its parameter: no name leads to that, and it is as large.
    is_nobodys = ~names.placed[rows] & np.isin(
        allocations.requested_bytes[rows], allocations.requested_bytes[states]
    )
    parameters = rows[
        is_nobodys & (allocations.born[rows] < allocations.born[states].max(initial=-1))
    ]
    every = np.union1d(states, parameters)
    size_bytes = scene.bytes_of(every)
    if not len(states) or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    yield Finding(
        id="replaced_states",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are states that the optimizer keeps of parameters"
        " which none of its groups has, and these parameters",
        bytes=size_bytes,
        place=scene.view.place_of_block(int(states[-1])),
        evidence=(
            "optimizer.state has an entry for each parameter that it stepped, and its keys keep"
            " these alive",
        ),
        fix="where a parameter is replaced, take the old one out of the state: state ="
        " optimizer.state.pop(old), and optimizer.state[new] = state with the new sizes (about"
        f" {format_size(size_bytes)} less)",
        extent=scene.extent(every),
    )
