"""Entries of a store that have no name: a recording names a few hundred tensors that are no model's, the largest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.scene import Scene
from vramlens.trace import TensorKind

MANY_NAMED, _MOST_NAMED = 250, 500
"""Entries of one store, from which on there may be more without a name; and how many tensors have one
(capture/names/tensor_names.py).
"""
_MOST_FILLING = 4
"""Lines that make the entries of one store."""
_MOSTLY = 0.9


def with_unnamed_entries(scene: Scene, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """These entries, and what their lines asked for that has no name, if nearly all of theirs that has one is
    among these: all that is no larger where as many have a name as can, else what is as large.
    """
    sizes, frames = scene.device.allocations.requested_bytes, scene.view.phases.frame
    names = scene.view.names
    alive = scene.advice_rows
    unnamed = alive[~names.named[alive]]
    if len(names.of_kind(TensorKind.TENSOR)) >= _MOST_NAMED:
        unnamed = unnamed[sizes[unnamed] <= sizes[rows].min()]
    else:
        unnamed = unnamed[np.isin(sizes[unnamed], sizes[rows])]
    every = rows
    for frame in np.unique(frames[rows])[:_MOST_FILLING].tolist():
        named_of_line = alive[(frames[alive] == frame) & names.named[alive]]
        if len(np.intersect1d(named_of_line, rows)) >= _MOSTLY * len(named_of_line):
            every = np.union1d(every, unnamed[frames[unnamed] == frame])
    return every
