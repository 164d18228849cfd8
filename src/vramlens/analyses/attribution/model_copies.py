"""Copies of a model that a program keeps beside it: snapshots of its weights, an ensemble.

A buffer of data or results is filled on purpose; whole copies of weights that no pass runs through
are rarely kept on a GPU on purpose, and a few of them tell as much as many results do.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category

_FEWEST_TENSORS = 4
"""Of a copy: one or two tensors may be as large as a weight by chance."""
_ALL = 0.95
"""Of the bytes of a copy, and of the model, that are alike tensor by tensor: masks and buffers may
come beside them.
"""


def are_unused_copies(view: Attribution, rows: NDArray[np.int64]) -> bool:
    """Whether what each step left behind is a copy of the same model, which no pass ran through."""
    root = view.modules.root
    running = np.unique(root[view.modules.marked])
    if not len(rows) or not len(running) or np.isin(root[rows], running).any():
        return False
    parameters = np.flatnonzero(view.categories.category[: rows[0]] == Category.PARAMETERS)
    models = [parameters[root[parameters] == model] for model in running.tolist()]
    copies = [rows[view.step[rows] == step] for step in np.unique(view.step[rows]).tolist()]
    return any(all(_is_copy(view, copy, model) for copy in copies) for model in models)


def has_copy_of_step(view: Attribution, rows: NDArray[np.int64], step: int, event: int) -> bool:
    """Whether a step made one copy more before an event, whole and still there.

    Args:
        rows: what the steps before it left behind.
    """
    allocations = view.device.allocations
    is_own = (view.step == step) & (allocations.born < event) & (allocations.free_requested > event)
    is_own &= np.isin(allocations.stack, np.unique(allocations.stack[rows]))
    return are_unused_copies(view, np.append(rows, np.flatnonzero(is_own))) and bool(is_own.any())


def _is_copy(view: Attribution, rows: NDArray[np.int64], model: NDArray[np.int64]) -> bool:
    """Whether some tensors are as large, one by one, as those of the model, and as all of it."""
    sizes = view.device.allocations.requested_bytes
    count_by_size, model_count_by_size = (
        Counter(sizes[rows].tolist()),
        Counter(sizes[model].tolist()),
    )
    alike_bytes = sum(size * count for size, count in (count_by_size & model_count_by_size).items())
    most_bytes = max(int(sizes[rows].sum()), int(sizes[model].sum()))
    return len(rows) >= _FEWEST_TENSORS and alike_bytes >= _ALL * most_bytes
