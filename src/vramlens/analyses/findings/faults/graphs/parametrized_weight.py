"""A parametrized weight that a loop reads: each turn computes it anew, and the graph keeps all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_PARAMETRIZED = re.compile(r"torch[/\\]nn[/\\]utils[/\\]parametrize\.py:get_parametrized$")
"""Reads the attribute: computes it, unless ``parametrize.cached()`` is in use."""
_FEWEST_READS = 4
"""Of one weight: two or three passes of one step are usual."""
_LEAST_SHARE = 0.3
"""Of what is in use."""


@after_failure
def parametrized_weight(scene: Scene) -> Iterator[Finding]:
    """What parametrizations computed for one pass, if they did so several times for each weight and all of it
    is in use when memory runs out.
    """
    view, allocations, rows = scene.view, scene.device.allocations, scene.advice_rows
    is_of_pass = (allocations.born[rows] > scene.last_backward_end) & view.modules.marked[rows]
    is_of_pass &= ~view.names.placed[rows]
    is_computed = scene.trace.stacks.within(_PARAMETRIZED, allocations.stack[rows])
    rows = rows[is_of_pass & is_computed]
    # Layers of one kind read a weight each, at one line: by module they are told apart.
    calls = (allocations.stack, view.modules.module, allocations.requested_bytes)
    _, group, counts = np.unique(
        np.stack([column[rows] for column in calls]),
        axis=1,
        return_inverse=True,
        return_counts=True,
    )
    reads_of_row = counts[group.reshape(-1)]
    rows, reads_of_row = (
        rows[reads_of_row >= _FEWEST_READS],
        reads_of_row[reads_of_row >= _FEWEST_READS],
    )
    sizes = allocations.requested_bytes[rows]
    size_bytes = int(sizes.sum())
    if not len(rows) or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    reads = int(reads_of_row[np.argmax(sizes)])
    saved_bytes = size_bytes - int((sizes / reads_of_row).sum())
    yield Finding(
        id="parametrized_weight",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are weights that their parametrization computed"
        f" anew {reads:,} times in one pass",
        bytes=saved_bytes,
        place=view.place_of_block(allocations.largest_of(rows)),
        evidence=(
            "a parametrized weight is computed each time that it is read, and the graph keeps each"
            " of them",
        ),
        fix='compute it once a step: put the forward pass under "with torch.nn.utils.parametrize.cached():" (up to'
        f" {format_size(saved_bytes)} less)",
        extent=scene.extent(rows),
    )
