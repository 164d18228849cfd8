"""Weights that layers compute from quantized ones, and that the graph keeps: it saves what a product takes in."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size

_QUANTIZED = (
    *("int8", "uint8", "int32", "float8_e4m3fn", "float8_e5m2"),
    *("float8_e4m3fnuz", "float8_e5m2fnuz"),
)
"""Of 32 bits, too: several numbers of 4 bits are packed in one."""
_TIMES = (2, 4, 8)
"""As large as the quantized weight: 16 or 32 bits for each 8, 16 for each 4, 32 for each 4."""
_SAVES_NARROW = re.compile(r"[/\\]bitsandbytes[/\\]autograd[/\\]")
"""A custom Function that saves the quantized weight."""
_MATRIX = 2
_FEWEST_LAYERS = 3
"""Without a graph, there is one at a time."""
_LEAST_SHARE = 0.25
"""Of what is in use, with the failed request."""


@after_failure
def dequantized_weights(scene: Scene) -> Iterator[Finding]:
    """The wide copies of quantized weights that this pass made and that are in use when memory runs
    out.
    """
    rows = _wide_copies(scene)
    size_bytes = scene.bytes_of(rows)
    modules = scene.view.modules.module[rows]
    layers = len(np.unique(modules))
    if layers < _FEWEST_LAYERS or size_bytes < _LEAST_SHARE * scene.wanted_bytes:
        return
    largest = scene.device.allocations.largest_of(rows)
    # The layer that runs needs its own.
    saved_bytes = size_bytes - scene.bytes_of(rows[modules == scene.view.modules.module[largest]])
    yield Finding(
        id="dequantized_weights",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are 16-bit (or 32-bit) copies of the quantized"
        f" weights of {layers} layers, which the graph keeps for the backward pass",
        bytes=saved_bytes,
        place=scene.view.place_of_block(largest),
        evidence=("a product saves the weight that it takes in, for the gradient of its input",),
        fix="compute the copy again in the backward pass: in a torch.autograd.Function that saves"
        " the quantized weight and its scale, or with torch.utils.checkpoint around each layer's"
        f" product (about {format_size(saved_bytes)} less so far, and more with each layer)",
        extent=scene.extent(rows),
        recurs=True,
    )


def _wide_copies(scene: Scene) -> NDArray[np.int64]:
    """What modules made in this pass that is as large as a wide copy of a quantized weight of their
    own, and as nothing that modules without one made.
    """
    view, allocations, rows = scene.view, scene.device.allocations, scene.advice_rows
    sizes, stacks = allocations.requested_bytes, scene.trace.stacks
    quantized = view.names.of_type(_QUANTIZED, TensorKind.PARAMETER, TensorKind.BUFFER)
    wide_sizes: dict[str, set[int]] = {}
    for weight in np.intersect1d(quantized, rows).tolist():
        module = view.names.name(weight).rpartition(".")[0]
        wide_sizes.setdefault(module, set()).update(times * int(sizes[weight]) for times in _TIMES)
    begins = scene.last_backward_end
    is_marked = view.modules.marked & ~view.modules.without_grad
    of_pass = np.flatnonzero(is_marked & (allocations.born > begins))
    is_of_others = [view.modules.paths[m] not in wide_sizes for m in view.modules.module[of_pass]]
    other_sizes = np.unique(sizes[of_pass[np.array(is_of_others, np.bool_)]])
    rows = rows[is_marked[rows] & ~view.names.placed[rows] & (allocations.born[rows] > begins)]
    rows = rows[~np.isin(sizes[rows], other_sizes)]
    rows = rows[~stacks.within(_SAVES_NARROW, allocations.stack[rows])]
    is_wide = [
        int(sizes[row]) in wide_sizes.get(view.modules.paths[view.modules.module[row]], ())
        and _may_be_matrix(scene, row)
        for row in rows.tolist()
    ]
    return np.asarray(rows[np.array(is_wide, np.bool_)])


def _may_be_matrix(scene: Scene, row: int) -> bool:
    """Whether nothing says that a tensor has other than two dimensions."""
    shape = scene.advice_shapes.get(row)
    return shape is None or len(shape.sizes) == _MATRIX
