"""Parameters that are not trained and that an optimizer has all the same, where that takes memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.parameter_uses import (
    have_gradients,
    modules_with,
    outermost_modules,
)
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import ParameterUse, TensorKind
from vramlens.units import format_size

_LBFGS = re.compile(r"torch[/\\]optim[/\\]lbfgs\.py:")
_MADE_AT_ONCE = re.compile(r"torch[/\\]optim[/\\]\w+\.py:__init__$")
"""Adagrad's states: it makes those of all its parameters when it is made."""
_STATE = re.compile(r"^(?P<optimizer>[^.\[]+)\.[^\[]+\[(?P<parameter>.+)\]$")
"""``optimizer.sum[model.weight]`` (capture/names/tensor_names.py)."""
_LEAST_SHARE = 0.1
"""Of what is in use, as of the part of each vector."""
_MOST_MODULES = 3
_FILTER = "[p for p in model.parameters() if p.requires_grad]"


@after_failure
def frozen_in_optimizer(scene: Scene) -> Iterator[Finding]:
    """What an optimizer keeps for parameters that are not trained when memory runs out: parts of the flat
    vectors of torch.optim.LBFGS, or states.
    """
    names = scene.view.names
    stepped = np.intersect1d(scene.advice_rows, names.of_kind(TensorKind.PARAMETER))
    stepped = stepped[names.use[stepped] == ParameterUse.STEPPED]
    yield from list(_in_vectors(scene, stepped)) or _in_states(scene, stepped)


def _in_vectors(scene: Scene, stepped: NDArray[np.int64]) -> Iterator[Finding]:
    """The vectors of LBFGS, each as long as all its parameters."""
    sizes = scene.device.allocations.requested_bytes
    is_idle = scene.view.names.frozen[stepped] | _is_without_gradient(scene, stepped)
    idle, trained = stepped[is_idle], stepped[~is_idle]
    idle_bytes, vector_bytes = scene.bytes_of(idle), scene.bytes_of(stepped)
    if not len(trained) or idle_bytes < _LEAST_SHARE * vector_bytes:
        return
    rows = scene.advice_rows[sizes[scene.advice_rows] == vector_bytes]
    rows = rows[scene.trace.stacks.within(_LBFGS, scene.device.allocations.stack[rows])]
    size_bytes = len(rows) * idle_bytes
    if size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    yield Finding(
        id="frozen_in_optimizer",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are parts of vectors of torch.optim.LBFGS for"
        " parameters that are not trained",
        bytes=size_bytes,
        place=scene.view.place_of_block(int(rows[-1])),
        evidence=(
            "each of its vectors is as long as all parameters that it was given:"
            f" {format_size(vector_bytes)}",
            f"{format_size(vector_bytes - idle_bytes)} of the parameters get gradients; for the"
            " others, LBFGS keeps zeros",
        ),
        fix=f"give LBFGS only what is trained: {_trained_only(scene, trained, idle)} (about"
        f" {format_size(size_bytes)} less, and as much of each vector to come)",
        extent=scene.extent(rows),
    )


def _is_without_gradient(scene: Scene, parameters: NDArray[np.int64]) -> NDArray[np.bool_]:
    """One flag a parameter: whether it has no gradient where LBFGS itself ran out of memory: its closure has
    computed all gradients then.
    """
    names = scene.view.names
    frames = scene.trace.stacks.of(scene.ending_request.stack)[:1]
    is_in_optimizer = any(_LBFGS.search(f"{frame.file}:{frame.function}") for frame in frames)
    has_some = len(np.intersect1d(scene.advice_rows, names.of_kind(TensorKind.GRADIENT))) > 0
    if not is_in_optimizer or not has_some:
        return np.zeros(len(parameters), np.bool_)
    return ~have_gradients(names, parameters, scene.advice_rows)


def _trained_only(scene: Scene, trained: NDArray[np.int64], idle: NDArray[np.int64]) -> str:
    """What to give to the optimizer: the modules that are trained, or what tells trained parameters."""
    names = scene.view.names
    modules = outermost_modules(modules_with(names, trained), frozenset(modules_with(names, idle)))
    is_all = all(
        any(names.name(row).startswith(f"{module}.") for module in modules)
        for row in trained.tolist()
    )
    is_frozen = bool(names.frozen[idle].all())
    if not is_all or not 0 < len(modules) <= _MOST_MODULES:
        return _FILTER if is_frozen else f"freeze the others, and pass {_FILTER}"
    named = [f"{module}.parameters()" for module in modules]
    text = named[0] if len(named) == 1 else f"[{', '.join(f'*{text}' for text in named)}]"
    return f"{text}, or {_FILTER}" + ("" if is_frozen else " where the others are frozen")


def _in_states(scene: Scene, stepped: NDArray[np.int64]) -> Iterator[Finding]:
    """The states of frozen parameters, of optimizers that have others to train."""
    names, allocations = scene.view.names, scene.device.allocations
    frozen = {names.name(row) for row in stepped[names.frozen[stepped]].tolist()}
    trained = {names.name(row) for row in stepped[~names.frozen[stepped]].tolist()}
    states = np.intersect1d(scene.advice_rows, names.of_kind(TensorKind.OPTIMIZER_STATE))
    matches = {row: _STATE.match(names.name(row)) for row in states.tolist()}
    owners = {row: (m["optimizer"], m["parameter"]) for row, m in matches.items() if m is not None}
    at_work = {optimizer for optimizer, parameter in owners.values() if parameter in trained}
    rows = np.array(
        [
            row
            for row, (optimizer, parameter) in owners.items()
            if parameter in frozen and optimizer in at_work
        ],
        np.int64,
    )
    size_bytes = scene.bytes_of(rows)
    if not len(rows) or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    is_made_at_once = scene.trace.stacks.within(_MADE_AT_ONCE, allocations.stack[rows]).all()
    yield Finding(
        id="frozen_in_optimizer",
        verdict=Verdict.LIKELY if is_made_at_once else Verdict.POSSIBLE,
        title=f"{scene.part_of_heap(size_bytes)} are states that the optimizer keeps of parameters"
        " that are frozen",
        bytes=size_bytes,
        place=scene.view.place_of_block(allocations.largest_of(rows)),
        evidence=(
            "these parameters are in its groups, and requires_grad is False",
            "it made them for all its parameters when it was built"
            if is_made_at_once
            else "they were trained before",
        ),
        fix=f"freeze first, and give the optimizer only what is trained: {_FILTER}"
        f" (about {format_size(size_bytes)} less)"
        if is_made_at_once
        else "unless they are trained again, take them out of the optimizer when they are frozen:"
        " optimizer.state.pop(p, None) for each, or build a new optimizer of"
        f" {_FILTER} (about {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )
