"""A whole copy of weights of which each rank has a part: an average that was copied before they were divided."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.parameter_uses import (
    is_inside,
    modules_around,
    outermost_modules,
)
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.trace import ParameterUse, TensorKind, TensorNames
from vramlens.units import counted, format_size

_LEAST_SHARE = 0.05
"""Of what is in use."""
_ALIKE = 0.95
"""Of the bytes of both: a tensor of one row is not divided."""
_UNEVEN = 0.05
"""How far a rank's parts may be from their share: rows that do not divide evenly."""
_FEWEST_TENSORS, _FEWEST_STEPS = 4, 4


@dataclass(frozen=True, slots=True)
class _Parameter:
    """A parameter that is alive: its allocation, path, bytes, the type of its elements, and how many ranks
    have a part of it (0 or 1 where it is whole).
    """

    row: int
    path: str
    bytes: int
    dtype: str
    parts: int


def whole_copy(scene: Scene) -> Iterator[Finding]:
    """A module that nothing trains and few steps run, with all weights of another of which each rank has a
    part: with the same names and types, and as many times the bytes as there are parts.
    """
    table = scene.view.names.tensors
    if not table.parts:
        return
    divided, idle, active = _parameters(scene, table)
    by_ending = _by_ending(divided)
    for copy in outermost_modules(map(_module, idle), frozenset(map(_module, active))):
        parameters = [parameter for parameter in idle if is_inside(parameter.path, copy)]
        parts = _parts_of_original(parameters, by_ending, divided)
        size_bytes = sum(parameter.bytes for parameter in parameters)
        is_much = size_bytes >= _LEAST_SHARE * scene.advice_heap.requested_bytes
        ran, steps = _steps_of(scene, copy)
        if parts and is_much and 2 * ran < steps and steps >= _FEWEST_STEPS:
            yield _finding(scene, copy, parameters, parts, (ran, steps))
            return


def _finding(
    scene: Scene, copy: str, parameters: list[_Parameter], parts: int, used: tuple[int, int]
) -> Finding:
    """What is told of a copy; in how many steps it ran, and how many there are."""
    size_bytes = sum(parameter.bytes for parameter in parameters)
    saved_bytes = size_bytes - size_bytes // parts
    rows: NDArray[np.int64] = np.array(sorted(parameter.row for parameter in parameters), np.int64)
    ran, steps = used
    return Finding(
        id="whole_copy",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are a whole copy of weights that are divided among"
        f" {counted(parts, 'rank')} ({copy})",
        bytes=saved_bytes,
        place=scene.view.place_of_block(scene.device.allocations.largest_of(rows)),
        evidence=(
            f"{counted(len(parameters), 'parameter')} with the names and types of the divided"
            f" ones; no optimizer has them, and they ran in {ran:,} of {steps:,} steps",
        ),
        fix="divide the copy as the model is divided (call fully_shard on it in the same way,"
        " before it is updated), and update each rank's part: average.add_(parameter, alpha=...)"
        f" instead of parameter.full_tensor() (about {format_size(saved_bytes)} less on each rank)",
        extent=scene.extent(rows),
    )


def _parameters(
    scene: Scene, table: TensorNames
) -> tuple[list[_Parameter], list[_Parameter], list[_Parameter]]:
    """The parameters that are alive: those that are divided; those that are whole, and that no optimizer
    changes; and all but the latter.
    """
    names = scene.view.names
    alive = np.intersect1d(scene.advice_rows, names.of_kind(TensorKind.PARAMETER))
    divided: list[_Parameter] = []
    idle: list[_Parameter] = []
    active: list[_Parameter] = []
    for row in alive.tolist():
        number = int(names.row[row])
        parameter = _Parameter(
            row=row,
            path=table.name[number],
            bytes=int(table.size_bytes[number]),
            dtype=table.dtype[number] if table.dtype else "",
            parts=table.parts[number],
        )
        if parameter.parts > 1:
            divided.append(parameter)
        is_idle = names.use[row] in (ParameterUse.FROZEN, ParameterUse.UNSTEPPED)
        (idle if is_idle and parameter.parts <= 1 else active).append(parameter)
    return divided, idle, active


def _by_ending(parameters: Iterable[_Parameter]) -> dict[str, list[tuple[str, _Parameter]]]:
    """By each name that a parameter has inside of some module, those modules with it."""
    by_ending: dict[str, list[tuple[str, _Parameter]]] = defaultdict(list)
    for parameter in parameters:
        for outer, ending in _endings(parameter):
            by_ending[ending].append((outer, parameter))
    return by_ending


def _endings(parameter: _Parameter) -> list[tuple[str, str]]:
    """The modules that a parameter is in, the outermost first, and its name inside of each."""
    around = reversed(modules_around(_module(parameter)))
    return [(outer, parameter.path[len(outer) + 1 :]) for outer in around]


def _parts_of_original(
    parameters: list[_Parameter],
    by_ending: dict[str, list[tuple[str, _Parameter]]],
    divided: list[_Parameter],
) -> int:
    """Of how many ranks each has a part of the module that has nearly all of a copy's parameters, by the
    longest names that both have; 0 without one.
    """
    originals: dict[str, list[tuple[_Parameter, _Parameter]]] = defaultdict(list)
    for parameter in parameters:
        endings = (ending for _, ending in _endings(parameter) if ending in by_ending)
        for outer, original in by_ending.get(next(endings, ""), ()):
            if original.dtype == parameter.dtype:
                originals[outer].append((parameter, original))
    for outer, pairs in originals.items():
        parts = pairs[0][1].parts
        copied_bytes = sum(parameter.bytes for parameter, _ in pairs)
        part_bytes = sum(original.bytes for _, original in pairs)
        all_bytes = sum(original.bytes for original in divided if is_inside(original.path, outer))
        is_all = copied_bytes >= _ALIKE * sum(parameter.bytes for parameter in parameters)
        is_of_all = part_bytes >= _ALIKE * all_bytes
        is_whole = abs(copied_bytes / (parts * part_bytes) - 1) <= _UNEVEN
        if len(pairs) >= _FEWEST_TENSORS and is_all and is_of_all and is_whole:
            return parts
    return 0


def _steps_of(scene: Scene, copy: str) -> tuple[int, int]:
    """In how many steps a module ran, and in how many any did; nothing where modules have no marks."""
    modules = scene.view.modules
    of_copy = [number for number, path in enumerate(modules.paths) if is_inside(path, copy)]
    marked = modules.marked & (scene.view.step >= 0)
    ran = marked & np.isin(modules.module, of_copy)
    steps = [np.unique(scene.view.step[rows]) for rows in (ran, marked)]
    return len(steps[0]), len(steps[1])


def _module(parameter: _Parameter) -> str:
    return parameter.path.rpartition(".")[0]
