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


_MOST_TURNS_ALIKE = 0.2
"""Of the earlier turns, from one backward pass to the next: where more run the model with a graph, without and
with it again, the backward pass goes through both graphs.
"""


@after_failure
def abandoned_pass(scene: Scene) -> Iterator[Finding]:
    """What a pass since the last backward pass keeps, if the same model ran without a graph between it and the
    pass that failed.
    """
    begins = scene.pass_begins[scene.pass_begins <= scene.advice_event]
    backward = scene.view.phases.span_start
    backward = backward[backward <= scene.advice_event]
    if not len(backward):
        return  # nobody knows yet which passes are trained on
    has_graph = _have_graphs(scene, begins)
    turn = np.searchsorted(backward, begins)
    of_turn = np.flatnonzero(turn == len(backward))
    between = _passes_without_graph(has_graph[of_turn[:-1]])
    number = len(of_turn) - 2 - between
    if between < _FEWEST_BETWEEN or number < 0 or _is_usual(turn, has_graph):
        return
    rows = _kept_by(scene, begins, int(of_turn[number]))
    size_bytes = scene.bytes_of(rows)
    if size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    if not _is_of_one_model(scene, rows, begins[of_turn[number + 1 :]]):
        return
    yield Finding(
        id="abandoned_pass",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are activations of a pass that no backward pass"
        " went through, and the model has run without a graph since",
        bytes=size_bytes,
        place=scene.view.place_of_block(scene.device.allocations.largest_of(rows)),
        evidence=(
            f"{counted(between, 'pass', 'passes')} after it ran without gradients, and then the"
            " one that failed began",
            "a variable has its result (a loss, logits), and with it the graph, until it is"
            " assigned again",
        ),
        fix="where a loop ends between the forward and the backward pass (break, continue), test"
        " that before the forward pass; or delete the results of the last one after the loop"
        f" (del loss, logits): {format_size(size_bytes)} less",
        extent=scene.extent(rows),
    )


def _have_graphs(scene: Scene, begins: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each pass made anything while gradients were enabled, as far as modules' marks tell."""
    modules, born = scene.view.modules, scene.device.allocations.born
    rows = np.flatnonzero(modules.marked & ~modules.without_grad & (born >= 0))
    rows = rows[scene.view.phases.phase[rows] != Phase.BACKWARD]
    number = np.searchsorted(begins, born[rows], side="right") - 1
    return np.bincount(number[number >= 0], minlength=len(begins)) > 0


def _passes_without_graph(has_graph: NDArray[np.bool_]) -> int:
    """How many of the last passes have none."""
    with_graph = np.flatnonzero(has_graph)
    return len(has_graph) - 1 - int(with_graph[-1]) if len(with_graph) else len(has_graph)


def _is_usual(turn: NDArray[np.int64], has_graph: NDArray[np.bool_]) -> bool:
    """Whether many earlier turns run with a graph, without one, and with one again."""
    earlier = turn < turn[-1]
    turns = np.unique(turn[earlier]).tolist()
    alike = 0
    for number in turns:
        with_graph = has_graph[turn == number]
        first, last = np.argmax(with_graph), len(with_graph) - np.argmax(with_graph[::-1])
        alike += bool(with_graph.any() and not with_graph[first:last].all())
    return alike > _MOST_TURNS_ALIKE * len(turns)


def _kept_by(scene: Scene, begins: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    """What modules made in a pass that is in use, and that no name of the program's leads to."""
    view, born, alive = scene.view, scene.device.allocations.born, scene.advice_rows
    is_of_pass = (born[alive] >= begins[number]) & (born[alive] < begins[number + 1])
    is_of_pass &= view.modules.marked[alive] & (view.phases.phase[alive] != Phase.BACKWARD)
    return np.asarray(alive[is_of_pass & ~view.names.placed[alive]])


def _is_of_one_model(scene: Scene, rows: NDArray[np.int64], begins: NDArray[np.int64]) -> bool:
    """Whether the model that made most of some rows ran in each of the passes that begin later."""
    modules, born = scene.view.modules, scene.device.allocations.born
    root = int(np.bincount(modules.root[rows]).argmax())
    own_births = born[modules.marked & (modules.root == root)]
    passes = np.searchsorted(begins, own_births, side="right")
    return bool(np.isin(np.arange(1, len(begins) + 1), passes).all())
