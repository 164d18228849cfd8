"""Double precision: what NumPy's arrays bring to the GPU, and all that is computed from them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.named_shapes import Shape
from vramlens.analyses.attribution.parameter_uses import modules_with
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size, joined

_TYPES = ("float64", "complex128")
_USUAL_TYPES = ("float32", "complex64")
_LARGEST_NUMBER = 16
"""Bytes: one number alone widens nothing."""
_MOST_CONSTANTS = 3
"""Named in a sentence."""
_WHOLE_NUMBERS = re.compile(r"\b(?:argsort|sort|nonzero|topk|long|unique|arange|randperm)\(")
"""Calls that make whole numbers of 64 bits."""
_LEAST_SHARE = 0.5
"""Of what is in use: with less, the rest is what a smaller type would not change."""


@after_failure
def double_precision(scene: Scene) -> Iterator[Finding]:
    """Most of what is in use when memory runs out, if its numbers are twice as wide as usual."""
    request = scene.ending_request
    shapes = scene.advice_shapes
    known_rows = np.array([row for row, shape in shapes.items() if shape.type in _TYPES], np.int64)
    wide_inputs = scene.view.names.of_type(_TYPES[:1], TensorKind.PARAMETER, TensorKind.BUFFER)
    is_vector = scene.device.allocations.requested_bytes[wide_inputs] > _LARGEST_NUMBER
    wide_inputs = wide_inputs[is_vector]
    widened_rows = _widened(scene, wide_inputs)
    graph_rows = _of_wide_graph(scene)
    wide_rows = np.union1d(known_rows, np.union1d(widened_rows, graph_rows))
    sizes = scene.device.allocations.requested_bytes[wide_rows]
    size_bytes = int(sizes.sum())
    if not size_bytes or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    largest = int(wide_rows[np.argmax(sizes)])
    wide_type = shapes[largest].type if largest in shapes else _TYPES[0]
    place = scene.view.place_of_block(largest)
    if largest in widened_rows:
        name = _input_of(scene, wide_inputs, largest)
        reason = (
            f"{name} is in double precision, and what is computed with it is, too: it is twice as"
            " large as what goes in"
        )
        remedy = f"convert {name} to single precision before it is registered (.float())"
    elif constants := _constants_of(scene):
        names = joined([scene.view.names.name(row) for row in constants])
        is_one = len(constants) == 1
        reason = (
            f"{names} {'is' if is_one else 'are'} in double precision, and what is computed with"
            f" {'it' if is_one else 'them'} is, too"
        )
        remedy = f"make {names} in single precision (dtype=torch.float32, or .float())"
        place = scene.view.place_of_block(constants[0])
    else:
        reason = "NumPy's arrays are float64, and what is computed from them is, too"
        remedy = "convert the inputs to single precision (float32, complex64) as they go to the GPU"
    is_wide = request.size_bytes in sizes and not _WHOLE_NUMBERS.search(scene.ending_expression)
    saved_bytes = (size_bytes + is_wide * request.size_bytes) // 2
    yield Finding(
        id="double_precision",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are in double precision ({wide_type})",
        bytes=saved_bytes,
        place=place,
        evidence=(reason, f"the largest takes {format_size(int(sizes.max()))}"),
        fix=f"unless the result needs it, {remedy} (about {format_size(saved_bytes)} less)",
        extent=scene.extent(wide_rows),
    )


def _input_of(scene: Scene, wide_inputs: NDArray[np.int64], row: int) -> str:
    """The wide parameter or buffer of the module that made an allocation."""
    modules, names = scene.view.modules, scene.view.names
    owner = modules.paths[modules.module[row]]
    inputs = map(names.name, wide_inputs.tolist())
    return next(name for name in inputs if name.rpartition(".")[0] == owner)


def _of_wide_graph(scene: Scene) -> NDArray[np.int64]:
    """What has no name and exactly the size of a tensor in double precision that a graph made, and of
    none in single precision.
    """
    is_in_graph, sizes = scene.view.names.in_graph, scene.device.allocations.requested_bytes
    shapes = scene.advice_shapes
    usual_sizes = {shape.bytes for shape in shapes.values() if shape.type in _USUAL_TYPES}
    wide_sizes = {shape.bytes for row, shape in _wide_shapes(scene).items() if is_in_graph[row]}
    rows = scene.advice_rows[~np.isin(scene.advice_rows, [*shapes])]
    return rows[np.isin(sizes[rows], [*(wide_sizes - usual_sizes)])]


def _constants_of(scene: Scene) -> list[int]:
    """The tensors in double precision that the program keeps, that no graph made, and that are the last
    dimensions of what graphs made in double precision; the largest first.
    """
    is_in_graph = scene.view.names.in_graph
    shapes = _wide_shapes(scene)
    graph_sizes = {shape.sizes for row, shape in shapes.items() if is_in_graph[row]}
    rows = [
        row
        for row in scene.program_rows.tolist()
        if row in shapes
        and not is_in_graph[row]
        and any(_ends_with(sizes, shapes[row].sizes) for sizes in graph_sizes)
    ]
    return sorted(rows, key=lambda row: -shapes[row].bytes)[:_MOST_CONSTANTS]


def _ends_with(sizes: tuple[int, ...], last_sizes: tuple[int, ...]) -> bool:
    return len(sizes) > len(last_sizes) and sizes[-len(last_sizes) :] == last_sizes


def _wide_shapes(scene: Scene) -> dict[int, Shape]:
    """The shapes of what is in double precision and more than a number, by row."""
    return {
        row: shape
        for row, shape in scene.advice_shapes.items()
        if shape.type in _TYPES and shape.bytes > _LARGEST_NUMBER
    }


def _widened(scene: Scene, wide_inputs: NDArray[np.int64]) -> NDArray[np.int64]:
    """What modules with a wide parameter or buffer have computed, twice as large as a tensor in single
    precision: no name tells its type.
    """
    view, sizes = scene.view, scene.device.allocations.requested_bytes
    owners = modules_with(view.names, wide_inputs)
    is_owner = np.array([path in owners for path in (*view.modules.paths, "")])
    usual_bytes = [
        shape.bytes for shape in scene.advice_shapes.values() if shape.type in _USUAL_TYPES
    ]
    rows = scene.advice_rows
    is_unknown = ~np.isin(rows, [*scene.advice_shapes]) & view.modules.marked[rows]
    is_of_owner = is_owner[view.modules.module[rows]]
    is_twice = np.isin(sizes[rows], 2 * np.array(usual_bytes, np.int64))
    is_twice |= _is_of_wide_module(scene, rows)
    return np.asarray(rows[is_unknown & is_of_owner & is_twice])


def _is_of_wide_module(scene: Scene, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a module made each, and all that is known of what it made is in double precision."""
    modules = scene.view.modules
    known = {False: set[int](), True: set[int]()}
    for row, shape in scene.advice_shapes.items():
        if modules.marked[row] and shape.bytes > _LARGEST_NUMBER:
            known[shape.type in _TYPES].add(int(modules.module[row]))
    return np.isin(modules.module[rows], [*(known[True] - known[False])])
