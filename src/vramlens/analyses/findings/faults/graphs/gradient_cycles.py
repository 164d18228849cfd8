"""Graphs that gradients keep: after backward(create_graph=True), each leads back to itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size

_WITH_GRAPH = re.compile(
    r"^[^#]*backward\((?:[^#]*\bcreate_graph\s*=\s*(?!False)\w|\s*None\s*,\s*True\s*,\s*True)"
)
_NO_PARTS_OF_GRAPHS = (Category.PARAMETERS, Category.OPTIMIZER_STATE, Category.WORKSPACE)
_LEAST_SHARE = 0.25
"""Of what is in use."""
_FEWEST_STEPS = 2


@after_failure
def gradient_cycles(scene: Scene) -> Iterator[Finding]:
    """What earlier steps computed and nothing in Python holds, where a line calls
    backward(create_graph=True), and gradients are there that belong to nothing else or have graphs.
    """
    place = _line_with_graph(scene)
    if place is None or not _has_such_gradients(scene):
        return
    rows = _left_by_steps(scene)
    size_bytes = scene.bytes_of(rows)
    is_much = size_bytes >= _LEAST_SHARE * scene.advice_heap.requested_bytes
    if not is_much or len(np.unique(scene.view.step[rows])) < _FEWEST_STEPS:
        return
    yield Finding(
        id="gradient_cycles",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are graphs of earlier steps, kept by .grad since"
        " backward(create_graph=True)",
        bytes=size_bytes,
        place=place,
        evidence=(
            "they form a cycle, .grad → its graph → the parameter → .grad, which neither del nor"
            " gc.collect() frees (PyTorch warns of it)",
        ),
        fix="set each .grad to None once it has been used, as zero_grad() does; or, where no"
        " optimizer reads .grad, call torch.autograd.grad(loss, parameters, create_graph=True)"
        f" instead, which sets none (up to {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )


def _line_with_graph(scene: Scene) -> Place | None:
    """The line that keeps the graph of its backward pass; None where the recording has none."""
    frames = scene.trace.stacks.of(scene.ending_request.stack)
    places = [frame.place for frame in frames]
    places += [line.place for line in scene.advice_heap.by_line if line.place is not None]
    texts = ((place, scene.source_of(place)) for place in places)
    return next((place for place, text in texts if _WITH_GRAPH.search(text)), None)


def _has_such_gradients(scene: Scene) -> bool:
    """Whether gradients are there of tensors that nobody in Python holds, or that a graph made."""
    names = scene.view.names
    gradients = np.intersect1d(names.of_kind(TensorKind.GRADIENT), scene.advice_rows)
    return bool((~names.placed[gradients] | names.in_graph[gradients]).any())


def _left_by_steps(scene: Scene) -> NDArray[np.int64]:
    """What passes of earlier steps made that no name leads to."""
    view, rows = scene.view, scene.rows_of_ended_steps
    is_left = view.modules.marked[rows] | (view.phases.phase[rows] == Phase.BACKWARD)
    is_left &= ~view.names.placed[rows]
    is_left &= ~np.isin(view.categories.category[rows], _NO_PARTS_OF_GRAPHS)
    return np.asarray(rows[is_left])
