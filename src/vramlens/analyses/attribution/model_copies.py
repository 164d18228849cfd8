"""Copies of a model that a program keeps beside it: snapshots of its weights, an ensemble.

A buffer of data or results is filled on purpose; whole copies of weights that no pass runs through
are rarely kept on a GPU on purpose, and a few of them tell as much as many results do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.modules import OUTSIDE

_FEWEST_TENSORS = 4
"""Of a copy: one or two tensors may be as large as a weight by chance."""
_ALL = 0.95
"""Of the bytes of a copy, and of the model, that are alike tensor by tensor: masks and buffers may
come beside them.
"""


def are_unused_copies(view: Attribution, rows: NDArray[np.int64]) -> bool:
    """Whether what each step left behind is a copy of the same model, which no pass ran through."""
    if not view.modules.marked.any() or not len(rows) or _roots(view, rows) & _running_roots(view):
        return False
    models = list(_models_before(view, int(rows[0])))
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


def _models_before(view: Attribution, row: int) -> Iterator[NDArray[np.int64]]:
    """The parameters from before an allocation, by the model that ran with them."""
    parameters = np.flatnonzero(view.categories.category[:row] == Category.PARAMETERS)
    root_of = [next(iter(_roots(view, parameters[n : n + 1])), "") for n in range(len(parameters))]
    for root in _running_roots(view) & set(root_of):
        yield parameters[[name == root for name in root_of]]


def _is_copy(view: Attribution, rows: NDArray[np.int64], model: NDArray[np.int64]) -> bool:
    """Whether some tensors are as large, one by one, as those of the model, and as all of it."""
    sizes = view.device.allocations.requested_bytes
    own, models = Counter(sizes[rows].tolist()), Counter(sizes[model].tolist())
    alike_bytes = sum(size * count for size, count in (own & models).items())
    most_bytes = max(int(sizes[rows].sum()), int(sizes[model].sum()))
    return len(rows) >= _FEWEST_TENSORS and alike_bytes >= _ALL * most_bytes


def _roots(view: Attribution, rows: NDArray[np.int64]) -> set[str]:
    """The models that some tensors are of, by the first names of their paths."""
    modules = np.unique(view.modules.module[rows])
    return {view.modules.paths[n].partition(".")[0] for n in modules[modules != OUTSIDE].tolist()}


def _running_roots(view: Attribution) -> set[str]:
    return _roots(view, np.flatnonzero(view.modules.marked))
