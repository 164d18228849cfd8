"""Data that was put on the GPU before the first step, and leaves too little for the steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.training import Training
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size

_LEAST_SHARE = 0.5
_MOST_TENSORS, _MUCH = 4, 0.1
"""That are named, if each is so much of all of them."""


@after_failure
def kept_from_start(scene: Scene) -> Iterator[Finding]:
    """A few tensors that the program made before its model first ran, and that are most of what is
    alive when memory runs out in a step.
    """
    view = scene.view
    if not view.modules.marked.any():
        return
    allocations = scene.device.allocations
    first_pass = int(allocations.born[view.modules.marked].min())
    rows = scene.program_rows
    if len(scene.pass_begins) > 1:  # of the first pass it may be the batch
        rows = np.union1d(rows, _of_variables(scene))
    early = rows[(allocations.born[rows] >= 0) & (allocations.born[rows] < first_pass)]
    largest = early[np.argsort(allocations.requested_bytes[early])[::-1][:_MOST_TENSORS]]
    size_bytes = scene.bytes_of(largest)
    if not size_bytes or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    is_much = allocations.requested_bytes[largest] >= _MUCH * size_bytes
    names = ", ".join(_in_words(view.names.name(row)) for row in largest[is_much].tolist())
    yield Finding(
        id="kept_from_start",
        # A server's store has to be on the GPU.
        verdict=Verdict.POSSIBLE if view.training == Training.ABSENT else Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} were put on the GPU before the first step, and"
        f" stay: {names}",
        bytes=size_bytes,
        place=view.place_of_block(int(largest[0])),
        evidence=("no model, gradient or optimizer keeps it",),
        fix=f"keep {names} on the CPU; in each step take the rows that it uses there (x[i], i on"
        f" the CPU, too) and move only these: x[i].to(device) (up to {format_size(size_bytes)}"
        " less)",
        extent=scene.extent(np.sort(largest)),
    )


def _of_variables(scene: Scene) -> NDArray[np.int64]:
    """What is alive then and named by its shape alone, as what a function's variable keeps is."""
    names, rows = scene.view.names, scene.advice_rows
    is_other = scene.view.categories.category[rows] == Category.OTHER
    return np.intersect1d(rows[is_other & ~names.placed[rows]], names.of_kind(TensorKind.TENSOR))


def _in_words(name: str) -> str:
    """A name; of one that is a shape alone, words."""
    shape = name.removesuffix(" tensor").removesuffix(" slice")
    return name if shape == name else f"the tensor of {shape}"
