"""Parameters that were replaced in their module and that stay in the optimizer's groups, with their states."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.parameter_uses import have_gradients
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import ParameterUse, TensorKind
from vramlens.units import counted, format_size

_OF_NO_MODULE = re.compile(r"^(?P<optimizer>[^.\[]+)\.(?P<place>params\[.+\]\[\d+\])$")
"""``optimizer.params['grid'][0]``: a parameter that no module has (capture/names/tensor_names.py)."""
_STEP = re.compile(r"torch[/\\]optim[/\\]\w+\.py:")
_LEAST_SHARE = 0.1
"""Of what is in use."""


@after_failure
def left_in_groups(scene: Scene) -> Iterator[Finding]:
    """The parameters that an optimizer's groups have and no module has any more when memory runs out, and their
    states: modules have got others since, and no backward pass computes their gradients now.
    """
    parameters = _replaced(scene)
    rows = np.union1d(parameters, _states_of(scene, parameters))
    size_bytes = scene.bytes_of(rows)
    if not len(parameters) or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    largest = scene.device.allocations.largest_of(parameters)
    is_replaced = _has_successors(scene, parameters)
    unless = "" if is_replaced else "; unless the program trains them again later"
    size = format_size(size_bytes)
    yield Finding(
        id="left_in_groups",
        verdict=Verdict.LIKELY if is_replaced else Verdict.POSSIBLE,
        title=f"{scene.part_of_heap(size_bytes)} are {counted(len(parameters), 'parameter')} that"
        " no module has any more and the optimizer's groups still have, and their states",
        bytes=size_bytes,
        place=scene.view.place_of_block(largest),
        evidence=(
            "modules got other parameters since, which the optimizer has, too; the last backward"
            " pass computed no gradients of these",
        ),
        fix="where parameters are replaced, take the old ones out of the optimizer before the new"
        " group is added: optimizer.state.pop(p, None) for each, and leave their group out of"
        f" optimizer.param_groups; or build a new optimizer there (about {size} less){unless}",
        extent=scene.extent(rows),
    )


def _replaced(scene: Scene) -> NDArray[np.int64]:
    """The parameters of no module that had a backward pass before the newest parameter of a module was made, and
    that have no gradients now, although they require some.
    """
    names, phases = scene.view.names, scene.view.phases
    alive = np.intersect1d(scene.advice_rows, names.of_kind(TensorKind.PARAMETER))
    alive = alive[names.use[alive] == ParameterUse.STEPPED]
    is_apart = [_OF_NO_MODULE.match(names.name(row)) is not None for row in alive.tolist()]
    of_modules, apart = alive[~np.array(is_apart, np.bool_)], alive[np.array(is_apart, np.bool_)]
    passes = phases.passes_before(scene.device.allocations.born, scene.advice_event)
    apart = apart[~names.frozen[apart] & (passes[apart] < passes[of_modules].max(initial=0))]
    return np.asarray(apart[_are_idle(scene, apart, of_modules)] if len(apart) else apart)


def _has_successors(scene: Scene, parameters: NDArray[np.int64]) -> bool:
    """Whether the lines that made most of these made parameters that modules have now, too."""
    names, view, sizes = scene.view.names, scene.view, scene.device.allocations.requested_bytes
    alive = np.intersect1d(scene.advice_rows, names.of_kind(TensorKind.PARAMETER))
    lines = {view.place_of_block(row) for row in np.setdiff1d(alive, parameters).tolist()} - {None}
    succeeded = [row for row in parameters.tolist() if view.place_of_block(row) in lines]
    return bool(2 * sizes[succeeded].sum() >= sizes[parameters].sum())


def _are_idle(
    scene: Scene, apart: NDArray[np.int64], of_modules: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """One flag a parameter of no module: whether it has no gradient while those of modules have some. Where these
    have none either, or their backward pass is under way: whether the last one made nothing of its size.
    """
    names, sizes = scene.view.names, scene.device.allocations.requested_bytes
    is_idle = ~have_gradients(names, apart, scene.advice_rows)
    modules_have = have_gradients(names, of_modules, scene.advice_rows).any()
    if modules_have and not _is_in_backward_pass(scene):
        return is_idle
    used = np.concatenate([_sizes_of_last_pass(scene), sizes[of_modules]])
    return np.asarray(is_idle & ~np.isin(sizes[apart], used))


def _is_in_backward_pass(scene: Scene) -> bool:
    """Whether the failed request may be one of a backward pass: more gradients may be to come."""
    request, phases = scene.ending_request, scene.view.phases
    is_of_step = scene.trace.stacks.within(_STEP, np.array([request.stack], np.uint32))[0]
    return bool(phases.span_at(np.array([request.event]))[0] >= 0 and not is_of_step)


def _sizes_of_last_pass(scene: Scene) -> NDArray[np.int64]:
    """The sizes of all that the last backward pass that was over asked for."""
    phases, allocations = scene.view.phases, scene.device.allocations
    over = len(phases.ends_before(scene.advice_event))
    if not over:
        return np.zeros(0, np.int64)
    start, end = phases.span_start[over - 1], phases.span_end[over - 1]
    is_of_pass = (allocations.born >= start) & (allocations.born < end)
    return np.asarray(allocations.requested_bytes[is_of_pass])


def _states_of(scene: Scene, parameters: NDArray[np.int64]) -> NDArray[np.int64]:
    """What their optimizers keep of parameters of no module."""
    names = scene.view.names
    matches = [_OF_NO_MODULE.match(names.name(row)) for row in parameters.tolist()]
    owners = {(match["optimizer"], f"{match['place']}]") for match in matches if match is not None}
    candidates = np.intersect1d(scene.advice_rows, names.of_kind(TensorKind.OPTIMIZER_STATE))
    states = []
    for row in candidates.tolist():
        subject, _, owner = names.name(row).partition("[")
        if (subject.partition(".")[0], owner) in owners:
            states.append(row)
    return np.array(states, np.int64)
