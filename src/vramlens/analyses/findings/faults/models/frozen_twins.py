"""Frozen weights that are there twice: a reference beside the model that only has adapters trained."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.parameter_uses import (
    all_around,
    is_inside,
    modules_around,
    outermost_modules,
)
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import ParameterUse, TensorKind
from vramlens.units import format_size

_LEAST_SHARE = 0.1
"""Of what is in use."""
_ORIGINAL = "original_module"
"""What peft keeps beside the copy of a layer that is trained (``saved_modules``)."""
_ALIKE = 0.95
"""Of the bytes of both: a copy may have layers of its own, such as adapters that it never trains."""


@dataclass(frozen=True, slots=True)
class _Parameter:
    """A parameter that is alive when memory runs out."""

    row: int
    path: str
    bytes: int
    use: int


@after_failure
def frozen_twins(scene: Scene) -> Iterator[Finding]:
    """A module that nothing trains, and whose frozen weights another has in the same sizes."""
    parameters = list(_parameters(scene))
    stepped = frozenset(
        _module(parameter) for parameter in parameters if parameter.use == ParameterUse.STEPPED
    )
    if not stepped:
        return
    idle = [parameter for parameter in parameters if parameter.use != ParameterUse.STEPPED]
    for module in outermost_modules(map(_module, idle), stepped):
        name = module.rpartition(".")[2]
        if name.isdecimal() or name == _ORIGINAL:
            continue  # the layers of one model are alike
        copies = [parameter for parameter in idle if is_inside(parameter.path, module)]
        copied_bytes = sum(parameter.bytes for parameter in copies)
        if copied_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
            continue
        twin = _twin(module, copies, idle)
        if twin:
            yield _finding(scene, (twin, module), copies, is_trained=twin in all_around(stepped))
            return


def _finding(
    scene: Scene, modules: tuple[str, str], copies: list[_Parameter], *, is_trained: bool
) -> Finding:
    """What is told of a module, and of its copy.

    Args:
        is_trained: whether the module has trained parameters, too: then the frozen ones are what it
            began with.
    """
    module, copy = modules
    size_bytes = sum(parameter.bytes for parameter in copies)
    rows: NDArray[np.int64] = np.array(sorted(parameter.row for parameter in copies), np.int64)
    return Finding(
        id="frozen_twins",
        verdict=Verdict.LIKELY if is_trained else Verdict.POSSIBLE,
        title=f"{scene.part_of_heap(size_bytes)} are weights of {copy}, which nothing trains,"
        f" in the sizes of the frozen ones of {module}",
        bytes=size_bytes,
        place=scene.view.place_of_block(int(rows[0])),
        evidence=("no optimizer has either; whether their values are the same is not recorded",),
        fix=f"if they hold the same values, keep them once: ask {module} with its adapters"
        f" switched off (PEFT: disable_adapter()) instead of {copy}, or let both share the"
        f" parameters (up to {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )


def _parameters(scene: Scene) -> Iterator[_Parameter]:
    names, sizes = scene.view.names, scene.device.allocations.requested_bytes
    alive = np.intersect1d(scene.advice_rows, names.of_kind(TensorKind.PARAMETER))
    for row in alive.tolist():
        yield _Parameter(row, names.name(row), int(sizes[row]), int(names.use[row]))


def _twin(module: str, copies: list[_Parameter], idle: list[_Parameter]) -> str:
    """The outermost module beside this one that has its weights in the same sizes; "" without one."""
    around_module = set(modules_around(module))
    by_module: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for parameter in idle:
        if parameter.use != ParameterUse.FROZEN or is_inside(parameter.path, module):
            continue
        beside = [path for path in modules_around(_module(parameter)) if path not in around_module]
        if beside:
            by_module[beside[-1]][parameter.bytes] += 1
    copied = Counter(parameter.bytes for parameter in copies)
    for candidate, frozen in by_module.items():
        if _bytes(copied & frozen) >= _ALIKE * max(_bytes(copied), _bytes(frozen)):
            return candidate
    return ""


def _bytes(sizes: Counter[int]) -> int:
    return sum(size * count for size, count in sizes.items())


def _module(parameter: _Parameter) -> str:
    return parameter.path.rpartition(".")[0]
