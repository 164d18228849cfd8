"""Weights of models that are gone, and their casts, which autocast's cache keeps until its block ends."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size

_WIDE = re.compile(r"^float32\[[\d, ]+\] tensor$")
"""The name of a tensor that nobody in Python holds."""
_GRADIENT = re.compile(r"^grad\[float32\[[\d, ]+\] tensor\]$")
_FEWEST_SIZES, _FEWEST_CASTS = 3, 6
"""Fewer have the sizes of casts by chance."""
_MOSTLY = 0.8
"""Of what earlier passes left: a graph keeps activations, too."""
_LEAST_SHARE = 0.1
"""Of what is in use."""


@after_failure
def autocast_cache(scene: Scene) -> Iterator[Finding]:
    """The casts of weights that passes of earlier models left when memory runs out, and these weights, where
    nothing in Python keeps either, and the program computes under autocast.
    """
    if not scene.trace.meta.has_autocast:
        return
    casts, weights = _casts_and_weights(scene)
    sizes = scene.device.allocations.requested_bytes
    rows = np.concatenate([casts, weights, _gradients_of(scene, weights)])
    size_bytes = scene.bytes_of(rows)
    if (
        len(casts) < _FEWEST_CASTS
        or len(np.unique(sizes[casts])) < _FEWEST_SIZES
        or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes
    ):
        return
    size = format_size(size_bytes)
    what = (
        "weights of models that are gone, which autocast's cache keeps with their casts"
        if len(weights)
        else "casts of weights of earlier models, which autocast's cache keeps"
    )
    yield Finding(
        id="autocast_cache",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are {what}",
        bytes=size_bytes,
        place=scene.view.place_of_block(scene.device.allocations.largest_of(casts)),
        evidence=(
            f"nothing in Python keeps them: {len(casts)} that modules made are half as large as"
            " weights in float32",
            "autocast keeps the cast of each weight, and with it the weight and its gradient,"
            " until its outermost block ends",
        ),
        fix=f"{_narrower_block(scene)}, or pass cache_enabled=False to torch.autocast (about"
        f" {size} less)",
        extent=scene.extent(rows),
    )


def _narrower_block(scene: Scene) -> str:
    """Where to enter autocast. A step of training changes the weights, whose casts stay as they were."""
    if scene.view.phases.optimizer_ran:
        return (
            "enter torch.autocast around each forward pass alone: inside of one block, forward"
            " passes go on with the weights as they were before optimizer.step(); or call"
            " torch.clear_autocast_cache() after each step of the optimizer"
        )
    return (
        "enter torch.autocast anew for each model, inside the loop over the models; or call"
        " torch.clear_autocast_cache() after each"
    )


def _casts_and_weights(scene: Scene) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The casts that passes of earlier models left, and the weights of theirs that are still there; none where
    these passes left much else.
    """
    nothing = np.zeros(0, np.int64)
    view, allocations, alive = scene.view, scene.device.allocations, scene.advice_rows
    sizes, born = allocations.requested_bytes, allocations.born
    models = _models(scene)
    is_left = view.modules.marked[alive] & ~view.names.named[alive]
    is_left &= born[alive] < _birth_of_newest(scene)
    is_left &= view.phases.phase[alive] != Phase.BACKWARD
    remains = alive[is_left]
    if not len(remains):
        return nothing, nothing
    gone = _of_nobody(scene, int(born[remains].max()))
    halves = _halves_of(sizes, remains, np.append(models, gone))
    if sizes[halves].sum() < _MOSTLY * sizes[remains].sum():
        return nothing, nothing
    casts = _beyond(sizes, halves, models[born[models] < born[remains].max()])
    return casts, gone[np.isin(sizes[gone], 2 * sizes[casts])]


def _models(scene: Scene) -> NDArray[np.int64]:
    """The parameters that the program has."""
    return np.intersect1d(scene.advice_rows, scene.view.names.of_kind(TensorKind.PARAMETER))


def _birth_of_newest(scene: Scene) -> int:
    """When the newest of them was made: what passes left before is no longer of use to that model."""
    models = _models(scene)
    if not len(models):
        return scene.advice_event
    return int(scene.device.allocations.born[models].max())


def _gradients_of(scene: Scene, weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """What backward passes left that is as large as one of these weights, and nobody in Python holds."""
    view, alive = scene.view, scene.advice_rows
    sizes = scene.device.allocations.requested_bytes
    is_left = view.phases.phase[alive] == Phase.BACKWARD
    is_left &= np.isin(sizes[alive], sizes[weights])
    is_left &= scene.device.allocations.born[alive] < _birth_of_newest(scene)
    rows = alive[is_left]
    is_unheld = [
        not view.names.named[row] or bool(_GRADIENT.match(view.names.name(row)))
        for row in rows.tolist()
    ]
    return np.asarray(rows[np.array(is_unheld, np.bool_)])


def _of_nobody(scene: Scene, until: int) -> NDArray[np.int64]:
    """The tensors in float32 that nobody in Python holds and no module computed, made before an event."""
    view, alive = scene.view, scene.advice_rows
    alive = alive[~view.modules.marked[alive] & (scene.device.allocations.born[alive] < until)]
    is_wide = np.array(
        [bool(_WIDE.match(view.names.name(row))) for row in alive.tolist()], np.bool_
    )
    stacks = scene.device.allocations.stack[alive]
    # The names of a heap with many tensors are not complete.
    is_beside = ~view.names.named[alive] & np.isin(stacks, stacks[is_wide])
    return np.asarray(alive[is_wide | is_beside])


def _halves_of(
    sizes: NDArray[np.int64], rows: NDArray[np.int64], weights: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Those that are half as large as some weight."""
    return np.asarray(rows[np.isin(2 * sizes[rows], sizes[weights])])


def _beyond(
    sizes: NDArray[np.int64], casts: NDArray[np.int64], models: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The casts without one of each weight of models that were there already, the last of each size."""
    unpaired = Counter(sizes[models].tolist())
    earlier = []
    for row in casts[::-1].tolist():
        size = 2 * int(sizes[row])
        unpaired[size] -= 1
        if unpaired[size] < 0:
            earlier.append(row)
    return np.array(earlier[::-1], np.int64)
