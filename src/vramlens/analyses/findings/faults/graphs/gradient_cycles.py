"""Graphs that gradients keep: of backward(create_graph=True), each holds what computed it, and that the gradient."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vramlens.analyses.attribution.steps import PATTERN
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_WITH_GRAPH = re.compile(r"\.backward\(.*\bcreate_graph\s*=\s*True")
_LEAST_SHARE = 0.25
"""Of what is in use."""


@after_failure
def gradient_cycles(scene: Scene) -> Iterator[Finding]:
    """What earlier steps left that nothing in Python holds, where a line calls backward(create_graph=True)."""
    place = _line_with_graph(scene)
    view, rows = scene.view, scene.advice_rows
    starts = view.steps.starts[view.steps.starts <= scene.advice_event]
    if place is None or view.steps.source == PATTERN or not len(starts):
        return
    is_earlier = scene.device.allocations.born[rows] < starts[-1]
    rows = rows[is_earlier & (view.step[rows] >= 0) & ~view.names.placed[rows]]
    size_bytes = scene.bytes_of(rows)
    if size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    yield Finding(
        id="gradient_cycles",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are graphs of earlier steps that gradients may"
        " keep: of backward(create_graph=True), each is part of a reference cycle",
        bytes=size_bytes,
        place=place,
        evidence=(
            "each .grad then keeps the graph that computed it, and that graph its parameter, which"
            " has the .grad: neither del nor gc.collect() frees them (PyTorch warns of it)",
        ),
        fix="call torch.autograd.grad(loss, parameters, create_graph=True) instead, which sets no"
        " .grad; or set each .grad to None when you are done with it (up to"
        f" {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )


def _line_with_graph(scene: Scene) -> Place | None:
    """The line that keeps the graph of its backward pass; None where the recording has none."""
    frames = scene.trace.stacks.of(scene.ending_request.stack)
    places = [frame.place for frame in frames]
    places += [line.place for line in scene.advice_heap.by_line if line.place is not None]
    texts = ((place, scene.source_of(place)) for place in places)
    return next((place for place, text in texts if _WITH_GRAPH.search(text)), None)
