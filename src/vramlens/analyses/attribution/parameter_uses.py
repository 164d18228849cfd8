"""What training does with the parameters, by module: which an optimizer has, and which have gradients
that nobody uses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.names import Names
from vramlens.trace import ParameterUse, TensorKind

_OF_OPTIMIZER = ".params["
"""In the name of a parameter that only an optimizer has (capture/names/tensor_names.py)."""


@dataclass(frozen=True, eq=False)
class ParameterUses:
    """The parameters that are alive at a moment, where the recording says what training does with them.

    Attributes:
        unstepped_rows: the allocations of those that require gradients and that no optimizer changes.
        unstepped_modules: the outermost modules all of whose parameters are such ones.
        stepped_rows: the allocations of those that an optimizer changes.
        stepped_modules: all modules that have a parameter of their own that an optimizer has.
    """

    unstepped_rows: NDArray[np.int64]
    unstepped_modules: tuple[str, ...]
    stepped_rows: NDArray[np.int64]
    stepped_modules: frozenset[str]

    def is_unstepped(self, path: str) -> bool:
        """Whether a module is one of the unstepped ones, or inside of one."""
        return any(is_inside(path, outer) for outer in self.unstepped_modules)


def parameter_uses(view: Attribution, rows: NDArray[np.int64]) -> ParameterUses | None:
    """What training does with the parameters among these allocations; None where that is not known.

    An optimizer that has tensors of no module may train copies of the modules' own: then nobody
    knows which it changes.
    """
    names = view.names
    parameters = np.intersect1d(rows, names.of_kind(TensorKind.PARAMETER))
    if any(_OF_OPTIMIZER in names.name(row) for row in parameters.tolist()):
        return None
    use = names.use[parameters]
    unstepped_rows = parameters[use == ParameterUse.UNSTEPPED]
    stepped_rows = parameters[use == ParameterUse.STEPPED]
    stepped_modules = frozenset(modules_with(names, stepped_rows))
    if not stepped_modules:
        return None
    others = frozenset(modules_with(names, parameters[use != ParameterUse.UNSTEPPED]))
    return ParameterUses(
        unstepped_rows=unstepped_rows,
        unstepped_modules=outermost_modules(modules_with(names, unstepped_rows), others),
        stepped_rows=stepped_rows,
        stepped_modules=stepped_modules,
    )


def modules_with(names: Names, parameters: NDArray[np.int64]) -> set[str]:
    """The modules that have these parameters."""
    return {names.name(row).rpartition(".")[0] for row in parameters.tolist()}


def outermost_modules(modules: Iterable[str], others: frozenset[str]) -> tuple[str, ...]:
    """The outermost modules around these that hold none of the others."""
    around_others = all_around(others)
    outermost: dict[str, None] = {}
    for path in sorted(modules):
        own = [outer for outer in modules_around(path) if outer not in around_others]
        if own:
            outermost[own[-1]] = None
    return tuple(outermost)


def is_inside(path: str, module: str) -> bool:
    """Whether a path is that of a module, or of something inside of it."""
    return path == module or path.startswith(f"{module}.")


def all_around(modules: Iterable[str]) -> set[str]:
    """The modules, and all around any of them."""
    return {path for module in modules for path in modules_around(module)}


def modules_around(path: str) -> list[str]:
    """A module's path, and those of all around it, the innermost first."""
    paths = []
    while path:
        paths.append(path)
        path = path.rpartition(".")[0]
    return paths


def training_rows(
    names: Names, parameters: NDArray[np.int64], rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The gradients of some parameters among these allocations, and what optimizers keep of them."""
    owners = {f"{names.name(row)}]" for row in parameters.tolist()}
    of_training = names.of_kind(TensorKind.GRADIENT, TensorKind.OPTIMIZER_STATE)
    alive = np.intersect1d(rows, of_training).tolist()
    own_rows = [row for row in alive if names.name(row).partition("[")[2] in owners]
    return np.array(own_rows, np.int64)


def have_gradients(
    names: Names, parameters: NDArray[np.int64], rows: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """One flag a parameter: whether its gradient is among these allocations."""
    gradients = np.intersect1d(rows, names.of_kind(TensorKind.GRADIENT))
    of_gradients = {names.name(row) for row in gradients.tolist()}
    flags = [f"grad[{names.name(row)}]" in of_gradients for row in parameters.tolist()]
    return np.array(flags, np.bool_)
