"""A module that was given ``requires_grad = False``: an attribute of its own, which freezes no parameter."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.parameter_uses import is_inside, training_rows
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import ParameterUse, TensorKind
from vramlens.units import counted, format_size

_LEAST_SHARE = 0.1
"""Of what is in use."""


@after_failure
def frozen_in_name(scene: Scene) -> Iterator[Finding]:
    """The gradients, states and activations of the parameters that such a module left as they were."""
    names, alive = scene.view.names, scene.advice_rows
    unfrozen = _unfrozen(scene)
    if not len(unfrozen):
        return
    modules = list(dict.fromkeys(names.unfrozen(row) for row in unfrozen.tolist()))
    rows = np.union1d(training_rows(names, unfrozen, alive), _activations(scene, modules))
    size_bytes = scene.bytes_of(rows)
    if size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    module, more = modules[0], len(modules) - 1
    others = f" (and of {counted(more, 'other module')})" if more else ""
    yield Finding(
        id="frozen_in_name",
        verdict=Verdict.LIKELY,
        title=f"{module}.requires_grad = False{others} freezes nothing:"
        f" {scene.part_of_heap(size_bytes)} are gradients, state and activations of"
        f" {counted(len(unfrozen), 'parameter')}",
        bytes=size_bytes,
        place=scene.view.place_of_block(scene.device.allocations.largest_of(unfrozen)),
        evidence=("it is an attribute of the module; its parameters still require gradients",),
        fix=f"call {module}.requires_grad_(False){others}, with the underscore: the method freezes"
        f" the parameters (up to {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )


def _unfrozen(scene: Scene) -> NDArray[np.int64]:
    """The parameters that a module was to freeze; not those of a model of which it has all that are trained:
    there it is an attribute for a purpose of its own.
    """
    view, names = scene.view, scene.view.names
    parameters = np.intersect1d(scene.advice_rows, names.of_kind(TensorKind.PARAMETER))
    parameters = parameters[names.use[parameters] != ParameterUse.FROZEN]
    is_unfrozen = np.array([bool(names.unfrozen(row)) for row in parameters.tolist()], np.bool_)
    # What no optimizer has, beside what one has, is no model that is trained.
    is_idle = is_unfrozen & (names.use[parameters] == ParameterUse.UNSTEPPED)
    roots = view.modules.root[parameters]
    in_part = np.isin(roots, roots[~is_unfrozen])
    idle_model = ~np.isin(roots, roots[~is_idle]) & bool((~is_idle).any())
    return np.asarray(parameters[is_unfrozen & (in_part | idle_model)])


def _activations(scene: Scene, outer: list[str]) -> NDArray[np.int64]:
    """What was computed inside of some modules and is in use."""
    rows, modules = scene.computed_rows, scene.view.modules
    are_inside = [any(is_inside(path, module) for module in outer) for path in modules.paths]
    return np.asarray(rows[np.array([*are_inside, False])[modules.module[rows]]])
