"""Weights of models that are gone, and their casts, which autocast's cache keeps until its block ends."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size

_WIDE = re.compile(r"^float32\[[\d, ]+\] tensor$")
"""The name of a tensor that nobody in Python holds."""
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
    meta = scene.trace.meta
    if meta is None or not meta.has_autocast:
        return
    casts, weights = _casts_and_weights(scene)
    sizes = scene.device.allocations.requested_bytes
    rows = np.union1d(casts, weights)
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
            f"nothing in Python keeps them: {len(casts)} that modules made are half as large as weights in"
            " float32",
            "autocast keeps the cast of each weight, and the weight with it, until its outermost block ends",
        ),
        fix="enter torch.autocast anew for each model, inside the loop over the models; or call"
        " torch.clear_autocast_cache() after each, or pass cache_enabled=False to torch.autocast"
        f" (about {size} less)",
        extent=scene.extent(rows),
    )


def _casts_and_weights(scene: Scene) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The casts that passes of earlier models left, and the weights of theirs that are still there; none where
    these passes left much else.
    """
    nothing = np.zeros(0, np.int64)
    view, allocations, alive = scene.view, scene.device.allocations, scene.advice_rows
    sizes, born = allocations.requested_bytes, allocations.born
    models = np.intersect1d(alive, view.names.of_kind(TensorKind.PARAMETER))
    newest = int(born[models].max(initial=-1)) if len(models) else scene.advice_event
    is_left = view.modules.marked[alive] & ~view.names.named[alive] & (born[alive] < newest)
    remains = alive[is_left]
    if not len(remains):
        return nothing, nothing
    gone = _of_nobody(scene, int(born[remains].max()))
    casts = _beyond(
        sizes,
        _halves_of(sizes, remains, np.append(models, gone)),
        models[born[models] < born[remains].max()],
    )
    if sizes[casts].sum() < _MOSTLY * sizes[remains].sum():
        return nothing, nothing
    return casts, gone[np.isin(sizes[gone], 2 * sizes[casts])]


def _of_nobody(scene: Scene, until: int) -> NDArray[np.int64]:
    """The tensors in float32 that nobody in Python holds and no module computed, made before an event."""
    view, alive = scene.view, scene.advice_rows
    alive = alive[~view.modules.marked[alive] & (scene.device.allocations.born[alive] < until)]
    is_wide = [bool(_WIDE.match(view.names.name(row))) for row in alive.tolist()]
    return np.asarray(alive[np.array(is_wide, np.bool_)])


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
