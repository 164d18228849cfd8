"""The graph of a pass that no backward pass goes through any more: the program went on to others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import counted, format_size

_LEAST_SHARE = 0.2
"""Of what is in use."""
_FEWEST_BETWEEN = 2
"""Passes of the same model that kept nothing, between that one and the one that failed: an evaluation."""
_NOTHING = 0.01
"""Of what the abandoned pass keeps."""


@after_failure
def abandoned_pass(scene: Scene) -> Iterator[Finding]:
    """What a pass since the last backward pass keeps, if the same model ran without a graph between it and the
    pass that failed.
    """
    begins = _begins_since_backward(scene)
    if len(begins) < len(("abandoned", "failed")) + _FEWEST_BETWEEN:
        return
    kept = _kept_by_pass(scene, begins)
    sizes = [scene.bytes_of(rows) for rows in kept]
    between = _passes_without_graph(sizes[:-1])
    number = len(begins) - 2 - between
    if between < _FEWEST_BETWEEN or number < 0:
        return
    rows = kept[number]
    if sizes[number] < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    if not _is_of_one_model(scene, rows, begins[number + 1 :]):
        return
    size_bytes = sizes[number]
    yield Finding(
        id="abandoned_pass",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are activations of a pass that no backward pass"
        " went through, and the model has run without a graph since",
        bytes=size_bytes,
        place=scene.view.place_of_block(scene.device.allocations.largest_of(rows)),
        evidence=(
            f"{counted(between, 'pass', 'passes')} after it kept nothing, and then the one that"
            " failed began",
            "a variable has its result (a loss, logits), and with it the graph, until it is"
            " assigned again",
        ),
        fix="where a loop ends between the forward and the backward pass (break, continue), test"
        " that before the forward pass; or delete the results of the last one after the loop"
        f" (del loss, logits): {format_size(size_bytes)} less",
        extent=scene.extent(rows),
    )


def _begins_since_backward(scene: Scene) -> NDArray[np.int64]:
    """The events at which the model was called since the last backward pass began; none without one: nobody knows
    then which passes are trained on.
    """
    begins, backward = scene.pass_begins, scene.view.phases.span_start
    earlier = backward[backward <= scene.advice_event]
    if not len(earlier):
        return begins[:0]
    return np.asarray(begins[(begins > earlier.max()) & (begins <= scene.advice_event)])


def _kept_by_pass(scene: Scene, begins: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """What modules made in each pass, in the order of the passes, that is in use, and that no name of the
    program's leads to.
    """
    view, born, alive = scene.view, scene.device.allocations.born, scene.advice_rows
    is_forward = view.modules.marked[alive] & (view.phases.phase[alive] != Phase.BACKWARD)
    rows = alive[is_forward & ~view.names.placed[alive]]
    number = np.searchsorted(begins, born[rows], side="right") - 1
    return [rows[number == part] for part in range(len(begins))]


def _passes_without_graph(sizes: list[int]) -> int:
    """How many of the last passes kept hardly anything, beside the largest."""
    most_bytes = _NOTHING * max(sizes, default=0)
    return next(
        (count for count, size in enumerate(reversed(sizes)) if size > most_bytes), len(sizes)
    )


def _is_of_one_model(scene: Scene, rows: NDArray[np.int64], begins: NDArray[np.int64]) -> bool:
    """Whether the model that made most of some rows ran in each of the passes that begin later."""
    modules, born = scene.view.modules, scene.device.allocations.born
    root = int(np.bincount(modules.root[rows]).argmax())
    own = born[modules.marked & (modules.root == root)]
    passes = np.searchsorted(begins, own, side="right")
    return bool(np.isin(np.arange(1, len(begins) + 1), passes).all())
