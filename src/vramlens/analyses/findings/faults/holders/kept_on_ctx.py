"""What a custom autograd Function keeps as attributes of its ctx, after its backward pass."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_ON_CTX = re.compile(r"^(\w+)Backward\.(\w+)")
"""An attribute of the graph's node of a Function, which is its ctx (capture/names)."""
_FEWEST_PASSES = 2
"""Backward passes that left some: one may have gone through another graph, and this one's is to come."""
_LEAST_SHARE = 0.2
"""Of what is in use."""


@after_failure
def kept_on_ctx(scene: Scene) -> Iterator[Finding]:
    """The attributes of nodes that a backward pass is done with when memory runs out, if they are much of what
    is in use: a result on its own ctx leads to itself, and only the garbage collector frees both.
    """
    view, allocations, rows = scene.view, scene.device.allocations, scene.advice_rows
    is_on_ctx = [bool(_ON_CTX.match(view.names.name(row))) for row in rows.tolist()]
    rows = rows[np.array(is_on_ctx, np.bool_) & (allocations.born[rows] < scene.last_backward_end)]
    passes = np.unique(view.phases.passes_before(allocations.born[rows], scene.advice_event))
    size_bytes = scene.bytes_of(rows)
    if (
        len(passes) < _FEWEST_PASSES
        or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes
    ):
        return
    largest = allocations.largest_of(rows)
    match = _ON_CTX.match(view.names.name(largest))
    function, attribute = match.groups() if match else ("", "")
    yield Finding(
        id="kept_on_ctx",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are attributes of ctx in {function}, which are"
        " kept after the backward pass",
        bytes=size_bytes,
        place=view.place_of_block(largest),
        evidence=(
            "a result that is an attribute of its own ctx is kept by its own graph: only Python's"
            " garbage collector frees the two",
        ),
        fix=f"in {function}.forward, replace ctx.{attribute} = … with ctx.save_for_backward(…),"
        f" and read ctx.saved_tensors in backward (up to {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )
