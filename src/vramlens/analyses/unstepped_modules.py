"""Modules in eval mode whose parameters get gradients that no optimizer uses: a teacher that was
put into eval mode and called without ``torch.no_grad()``.

Names of tensors tell: a parameter has a gradient and no optimizer state, while others have state.
A model that is trained in eval mode has state; one that is frozen, to pass gradients on, has no
gradients of its own.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.trace import TensorKind, TensorNames

_ABOUT = re.compile(r"([^\[\]]*)\[(.*)\]", re.DOTALL)
"""grad[PARAMETER], optimizer.exp_avg[PARAMETER] (capture/names/tensor_names.py)."""


def unstepped_rows(view: Attribution) -> NDArray[np.int64]:
    """The forward allocations of modules in eval mode that no optimizer trains."""
    rows = np.flatnonzero(view.modules.eval_with_grad & (view.phases.span < 0))
    table = view.trace.names
    if table is None or not len(table) or not len(rows):
        return rows[:0]
    with_gradients, stepped = _parameters_by_use(table)
    if not stepped:
        return rows[:0]
    unstepped = with_gradients - stepped
    paths = view.modules.paths
    modules_by_root: dict[str, list[int]] = defaultdict(list)
    for module in np.unique(view.modules.module[rows]).tolist():
        root, _ = _split(paths[module])
        modules_by_root[root].append(module)
    own_modules: list[int] = []
    for root, modules in modules_by_root.items():
        inside = {paths[module] for module in modules}
        if _is_untrained(root, inside, with_gradients, unstepped):
            own_modules += modules
    return np.asarray(rows[np.isin(view.modules.module[rows], own_modules)])


def runs_before_training(view: Attribution, rows: NDArray[np.int64]) -> bool:
    """Whether these modules run before any other of their step, so that no gradient has to pass
    through them.
    """
    first = int(rows[view.step[rows] == view.step[rows].max()].min())
    is_of_other_module = view.modules.marked & ~view.modules.eval_with_grad & (view.phases.span < 0)
    is_of_other_module &= view.step == view.step[first]
    return not is_of_other_module[:first].any()


def _parameters_by_use(table: TensorNames) -> tuple[Counter[str], Counter[str]]:
    """How many parameters of each name have a gradient, and how many have optimizer state."""
    with_gradients: Counter[str] = Counter()
    states: Counter[tuple[str, str]] = Counter()
    # Parameters are named at several moments: the fullest tells most.
    moments, counts = np.unique(table.time_us, return_counts=True)
    fullest = moments[counts.argmax()]
    for row in np.flatnonzero(table.time_us == fullest).tolist():
        about = _ABOUT.fullmatch(table.name[row])
        if about is None:
            continue
        if table.kind[row] == TensorKind.GRADIENT:
            with_gradients[about[2]] += 1
        elif table.kind[row] == TensorKind.OPTIMIZER_STATE:
            states[about[1], about[2]] += 1
    stepped: Counter[str] = Counter()
    for (_, name), count in states.items():
        stepped[name] = max(stepped[name], count)
    return with_gradients, stepped


def _is_untrained(
    root: str, paths: set[str], with_gradients: Counter[str], unstepped: Counter[str]
) -> bool:
    """Whether the parameters of a root's modules have gradients, and none of them is stepped.

    A model that no variable names any more is called by its class: its parts still have their
    paths.
    """
    is_named = any(_split(name)[0] == root for name in with_gradients)
    tails = {_split(path)[1] for path in paths}
    own_names = [
        name
        for name in with_gradients
        if _split(name.rpartition(".")[0])[1] in tails and (_split(name)[0] == root or not is_named)
    ]
    return bool(own_names) and all(unstepped[name] for name in own_names)


def _split(path: str) -> tuple[str, str]:
    """The root of a path, and the path below it."""
    root, _, tail = path.partition(".")
    return root, tail
