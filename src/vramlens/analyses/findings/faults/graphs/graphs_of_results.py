"""Graphs of earlier steps that a result keeps: a running sum, an average or a list of losses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.names import store_words, stores_of_results
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace.stacks import is_user_file
from vramlens.units import format_size, listed

_FEWEST_STEPS = 3
_LEAST_SHARE = 0.25
"""Of what is in use."""
_LEAST_OF_GRAPHS = 0.25
_MOST_STORES = 3
_NO_PARTS_OF_GRAPHS = (
    Category.PARAMETERS,
    Category.GRADIENTS,
    Category.OPTIMIZER_STATE,
    Category.WORKSPACE,
)


@after_failure
def graphs_of_results(scene: Scene) -> Iterator[Finding]:
    """What graphs of several earlier steps keep, where the program keeps results that require gradients."""
    view = scene.view
    all_stores = stores_of_results(view.names, scene.advice_rows)
    adding_up = {name: rows for name, rows in all_stores.items() if _may_add_up(scene, rows)}
    stores = adding_up or all_stores
    rows = _of_earlier_steps(scene)
    size_bytes = scene.bytes_of(rows)
    is_much = size_bytes >= _LEAST_SHARE * scene.advice_heap.requested_bytes
    if not stores or not is_much or not _are_of_graphs(scene, rows):
        return
    keepers = listed([store_words(store) for store in stores], _MOST_STORES)
    is_one = len(stores) == 1
    newest = max(next(iter(stores.values())))
    yield Finding(
        id="graphs_of_results",
        verdict=Verdict.LIKELY if adding_up else Verdict.POSSIBLE,
        title=f"{keepers} {'keeps' if is_one else 'keep'} a result that requires gradients, and"
        f" with it the graphs of earlier steps: {scene.part_of_heap(size_bytes)}",
        bytes=size_bytes,
        place=view.place_of_block(newest),
        evidence=(
            "a sum, an average or a list of such results goes on with the graph of every step,"
            " until a backward pass goes through it",
        ),
        fix=f"keep .item() or .detach() of what goes into {keepers} (up to"
        f" {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )


def _may_add_up(scene: Scene, rows: Sequence[int]) -> bool:
    """Whether a store has results of several steps, or an operator of the program itself made its first, as it makes
    a sum or an average: what a function of PyTorch returned is the latest loss, kept until the next.
    """
    if len(np.unique(scene.view.step[np.array(rows)])) > 1:
        return True
    stack = int(scene.device.allocations.stack[rows[0]])
    frames = scene.trace.stacks.of(stack)
    return bool(frames) and is_user_file(frames[0].file)


def _are_of_graphs(scene: Scene, rows: NDArray[np.int64]) -> bool:
    """Whether allocations are from several steps, and much of what Python sees of them is made by graphs: these save
    what goes into them, too.
    """
    view = scene.view
    visible = rows[view.names.named[rows]]
    sizes = scene.device.allocations.requested_bytes[visible]
    graph_bytes = int(sizes[view.names.in_graph[visible]].sum())
    return (
        graph_bytes > _LEAST_OF_GRAPHS * int(sizes.sum())
        and len(np.unique(view.step[rows])) >= _FEWEST_STEPS
    )


def _of_earlier_steps(scene: Scene) -> NDArray[np.int64]:
    """The allocations of steps that are over which no name leads to, or which are parts of a graph."""
    view, rows = scene.view, scene.rows_of_ended_steps
    is_named = view.names.placed[rows] & ~view.names.in_graph[rows]
    is_other = np.isin(view.categories.category[rows], _NO_PARTS_OF_GRAPHS)
    return np.asarray(rows[~is_named & ~is_other])
