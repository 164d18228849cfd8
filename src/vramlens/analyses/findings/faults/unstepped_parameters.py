"""Parameters that no optimizer changes and that are not frozen: autograd works for them in vain."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import COMPUTED
from vramlens.analyses.attribution.parameter_uses import (
    ParameterUses,
    parameter_uses,
    training_rows,
)
from vramlens.analyses.attribution.training import LEAST_KEPT_SHARE, pass_starts
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import first_of, format_size

_MOST_MODULES = 3
_FEWEST_OF_COPY = 4
"""Parameters: a few may have equal sizes by chance."""
_PARTS_AT_ONCE = 2
"""Without a graph an operator's input and output are there all the same."""


@after_failure
def unstepped_parameters(scene: Scene) -> Iterator[Finding]:
    """What is in use for such parameters when memory runs out: their gradients, the state of an
    optimizer, and the activations for them.
    """
    uses = parameter_uses(scene.view, scene.advice_rows)
    if uses is None or not len(uses.unstepped_rows):
        return
    of_training = training_rows(scene.view.names, uses.unstepped_rows, scene.advice_rows)
    rows = np.concatenate([of_training, _activations(scene, uses)])
    sizes = scene.device.allocations.requested_bytes[rows]
    size_bytes = int(sizes.sum() - np.sort(sizes)[-_PARTS_AT_ONCE:].sum())
    if size_bytes <= 0:
        return
    parameter_sizes = scene.device.allocations.requested_bytes[uses.unstepped_rows]
    largest = int(uses.unstepped_rows[np.argmax(parameter_sizes)])
    modules = uses.unstepped_modules
    yield Finding(
        id="unstepped_parameters",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are gradients, state and activations for"
        " parameters that no optimizer changes",
        bytes=size_bytes,
        place=scene.view.place_of_block(largest),
        evidence=(
            f"{format_size(int(parameter_sizes.sum()))} of parameters require gradients, and no"
            f" optimizer changes them: {first_of(modules, _MOST_MODULES)}",
            "leaving parameters out of the optimizer, or a learning rate of 0, does not freeze"
            " them",
        ),
        fix=f"unless their gradients are used, {_freeze(modules)} (about {format_size(size_bytes)}"
        " less)",
        extent=scene.extent(rows),
    )


def _activations(scene: Scene, uses: ParameterUses) -> NDArray[np.int64]:
    """The activations of their modules that are alive; none where no graph keeps them (an average, a
    teacher). Where a module that is trained ran before, its gradients go through one pass of theirs; of
    several the first is counted, which may be of the target.
    """
    view, allocations, modules = scene.view, scene.device.allocations, scene.view.modules
    is_unstepped = np.array([*map(uses.is_unstepped, modules.paths), False])
    is_stepped = np.array([path in uses.stepped_modules for path in (*modules.paths, "")])
    rows = scene.advice_rows
    is_activation = np.isin(view.categories.category[rows], COMPUTED)
    is_activation &= modules.marked[rows] & ~view.names.placed[rows]
    rows = np.asarray(rows[is_activation & is_unstepped[modules.module[rows]]])
    if not len(rows):
        return np.zeros(0, np.int64)
    first = int(allocations.born[rows].min())
    ends = view.phases.span_end[view.phases.span_end < first]
    is_of_pass = modules.marked & (allocations.born >= ends.max(initial=0))
    is_before = is_of_pass & (allocations.born < first) & is_stepped[modules.module]
    requested = np.flatnonzero(is_of_pass & is_unstepped[modules.module])
    if len(rows) < LEAST_KEPT_SHARE * len(requested):
        return rows[:0]
    if not is_before.any() or _is_copy(scene, uses):
        return rows
    second_pass = pass_starts(modules, requested)[1:2]
    return np.asarray(rows[allocations.born[rows] < allocations.born[second_pass].max(initial=0)])


def _is_copy(scene: Scene, uses: ParameterUses) -> bool:
    """Whether these parameters have the sizes of those that are trained, one by one: a copy of the model (a
    reference, a teacher) is given what the model is given, and none of its results.
    """
    sizes = scene.device.allocations.requested_bytes
    is_whole = len(uses.stepped_rows) >= _FEWEST_OF_COPY
    return is_whole and np.array_equal(sizes[uses.unstepped_rows], sizes[uses.stepped_rows])


def _freeze(modules: tuple[str, ...]) -> str:
    """What to call: modules that stand between trained ones are many."""
    if len(modules) <= _MOST_MODULES:
        return f"call requires_grad_(False) on {', '.join(modules)}"
    return (
        "call requires_grad_(False) on the model before the parts that are trained are added to"
        " it, or on each parameter that the optimizer does not have, or has with a learning rate of 0"
    )
