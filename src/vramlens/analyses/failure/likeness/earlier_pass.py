"""What an earlier pass through the same model kept, at the size of the pass under way: an evaluation
of all rows at once, after training on small batches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.training import LEAST_KEPT_SHARE, kept_share, pass_starts

_MOST_PASSES = 24
_LEAST_BYTES = 2**20
"""Smaller results do not say how large a batch is."""
_FARTHER_THAN_LENGTHS = 8.0
"""Times an earlier pass: below that a length may have grown, and attention with its square, and the
blocks so far are the better bound.
"""


def most_by_earlier_passes(view: Attribution, event: int) -> int | None:
    """The most bytes that the pass of an event keeps at once, even if it keeps a graph as the latest
    ones through its modules did, all of them far smaller; None where these do not tell.
    """
    passes = _passes_of_model(view, event)
    if len(passes) < 2:
        return None
    allocations, current = view.device.allocations, passes[-1]
    most_bytes = []
    for earlier in passes[-1 - _MOST_PASSES : -1]:
        times = _times_as_large(view, earlier, current)
        if times is None or times < _FARTHER_THAN_LENGTHS:
            return None
        if kept_share(view.device, earlier) >= LEAST_KEPT_SHARE:
            most_bytes.append(int(times * allocations.fullest(earlier)[1]))
    return max(most_bytes, default=None)


def _passes_of_model(view: Attribution, event: int) -> list[NDArray[np.int64]]:
    """What the modules of the model that is running asked for before an event, by forward pass."""
    modules = view.modules
    rows = np.flatnonzero(modules.marked & (view.phases.span < 0))
    rows = rows[view.device.allocations.born[rows] < event]
    if not len(rows):
        return []
    rows = rows[modules.root[rows] == modules.root[rows[-1]]]
    return np.split(rows, np.searchsorted(rows, pass_starts(modules, rows)[1:]))


def _times_as_large(
    view: Attribution, earlier: NDArray[np.int64], current: NDArray[np.int64]
) -> float | None:
    """How many times as large results of the same modules are; None where they are not the same."""
    count = min(len(earlier), len(current))
    modules, sizes = view.modules.module, view.device.allocations.requested_bytes
    if len(earlier) < len(current) or (modules[earlier[:count]] != modules[current[:count]]).any():
        return None
    is_telling = sizes[current[:count]] >= _LEAST_BYTES
    ratios = sizes[current[:count]][is_telling] / sizes[earlier[:count]][is_telling]
    return float(ratios.max()) if len(ratios) else None
