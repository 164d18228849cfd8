"""A module that was given ``requires_grad = False``: an attribute of its own, which freezes no parameter."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.parameter_uses import training_rows
from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.usage import part_of_heap
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import counted, format_size

_COMPUTED = (Category.ACTIVATIONS, Category.TEMPORARIES, Category.OTHER)
"""What a module computes: of a pass that did not end nobody knows what a backward pass would have used."""
_LEAST_SHARE = 0.1
"""Of what is in use."""


@after_failure
def frozen_in_name(scene: Scene) -> Iterator[Finding]:
    """The gradients, states and activations of the parameters that such a module left as they were."""
    names, alive = scene.view.names, scene.advice_rows
    parameters = np.intersect1d(alive, names.of_kind(TensorKind.PARAMETER))
    unfrozen = np.array([row for row in parameters.tolist() if names.unfrozen(row)], np.int64)
    if not len(unfrozen):
        return
    module = names.unfrozen(int(unfrozen[0]))
    rows = np.union1d(training_rows(names, unfrozen, alive), _activations(scene, module))
    size_bytes = int(scene.device.allocations.requested_bytes[rows].sum())
    if size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    yield Finding(
        id="frozen_in_name",
        verdict=Verdict.LIKELY,
        title=f"{module}.requires_grad = False freezes nothing: {part_of_heap(size_bytes, scene.advice_heap)} are"
        f" gradients, state and activations of its {counted(len(unfrozen), 'parameter')}",
        bytes=size_bytes,
        place=scene.view.place_of_block(scene.device.allocations.largest_of(unfrozen)),
        evidence=(
            "it is an attribute of the module; its parameters still require gradients",
        ),
        fix=f"call {module}.requires_grad_(False), with the underscore: the method freezes the parameters (about"
        f" {format_size(size_bytes)} less)",
        extent=Extent(scene.advice_event, rows),
    )


def _activations(scene: Scene, module: str) -> NDArray[np.int64]:
    """What was computed inside of a module and is in use."""
    view, rows, modules = scene.view, scene.advice_rows, scene.view.modules
    is_inside = np.array([f"{path}.".startswith(f"{module}.") for path in (*modules.paths, "")])
    is_computed = np.isin(view.categories.category[rows], _COMPUTED) & modules.marked[rows]
    return np.asarray(rows[is_computed & is_inside[modules.module[rows]]])
