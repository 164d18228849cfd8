"""Back-propagation through the steps of a solver of differential equations."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_SOLVERS = {
    "torchdiffeq.odeint": re.compile(r"[/\\]torchdiffeq[/\\]_impl[/\\]odeint\.py:odeint$"),
    "torchsde.sdeint": re.compile(r"[/\\]torchsde[/\\]_core[/\\]sdeint\.py:sdeint$"),
}
"""The functions that keep every step, with what a stack of theirs goes through."""
_ADJOINT = re.compile(r"adjoint\.py:")
_LEAST_SHARE = 0.5


@after_failure
def solver_steps(scene: Scene) -> Iterator[Finding]:
    """The activations that a solver keeps of all its steps when memory runs out, if they are most of
    what is in use, and its adjoint form is not in use.
    """
    allocations, stacks = scene.device.allocations, scene.trace.stacks
    rows = scene.advice_rows
    rows = rows[scene.view.categories.category[rows] == Category.ACTIVATIONS]
    in_adjoint = stacks.within(_ADJOINT, allocations.stack[rows])
    for solver, pattern in _SOLVERS.items():
        in_solver = stacks.within(pattern, allocations.stack[rows])
        own_rows = rows[np.asarray(in_solver & ~in_adjoint)]
        size_bytes = scene.bytes_of(own_rows)
        if not size_bytes or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
            continue
        yield Finding(
            id="solver_steps",
            verdict=Verdict.LIKELY,
            title=f"{scene.part_of_heap(size_bytes)} are activations of all steps of {solver},"
            " kept for the backward pass",
            bytes=size_bytes,
            place=scene.view.place_of_block(int(own_rows[-1])),
            evidence=("they grow with the number of steps",),
            fix=f"call {solver}_adjoint, which computes them again in the backward pass: its"
            " gradients are as exact as the solver's tolerance, and what they are to reach must be"
            f" parameters of one nn.Module (up to {format_size(size_bytes)} less)",
            extent=scene.extent(own_rows),
        )
