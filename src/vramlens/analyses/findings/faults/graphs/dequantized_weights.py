"""Weights that layers compute from quantized ones, and that the graph keeps: it saves what a product takes in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size

_QUANTIZED = ("int8", "uint8", "int32", "float8_e4m3fn", "float8_e5m2")
"""Of 32 bits, too: several numbers of 4 bits are packed in one."""
_TIMES = (2, 4, 8)
"""As large as the quantized weight: 16 or 32 bits for each 8, 16 for each 4, 32 for each 4."""
_FEWEST_LAYERS = 3
"""Without a graph, there is one at a time."""
_LEAST_SHARE = 0.25
"""Of what is in use, with the failed request."""


@after_failure
def dequantized_weights(scene: Scene) -> Iterator[Finding]:
    """The wide forms of quantized weights that this pass made and that are in use when memory runs out."""
    rows = _wide_forms(scene)
    size_bytes = scene.bytes_of(rows)
    layers = len(np.unique(scene.view.modules.module[rows]))
    if layers < _FEWEST_LAYERS or size_bytes < _LEAST_SHARE * scene.wanted_bytes:
        return
    yield Finding(
        id="dequantized_weights",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are wide forms of the quantized weights of"
        f" {layers} layers, which the graph keeps for the backward pass",
        bytes=size_bytes,
        place=scene.view.place_of_block(scene.device.allocations.largest_of(rows)),
        evidence=(
            "a product saves the weight that it takes in, to compute the gradient of its input",
        ),
        fix="compute the wide weight again in the backward pass: in a torch.autograd.Function that"
        " saves the quantized weight and its scale, or with torch.utils.checkpoint around each"
        f" layer's product (at least {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
        recurs=True,
    )


def _wide_forms(scene: Scene) -> NDArray[np.int64]:
    """What modules made in this pass that is as large as a wide form of a quantized weight of their own."""
    view, allocations, rows = scene.view, scene.device.allocations, scene.advice_rows
    sizes = allocations.requested_bytes
    quantized = view.names.of_type(_QUANTIZED, TensorKind.PARAMETER, TensorKind.BUFFER)
    wide_sizes: dict[str, set[int]] = {}
    for weight in np.intersect1d(quantized, rows).tolist():
        module = view.names.name(weight).rpartition(".")[0]
        wide_sizes.setdefault(module, set()).update(times * int(sizes[weight]) for times in _TIMES)
    is_of_pass = view.modules.marked[rows] & ~view.names.placed[rows]
    rows = rows[is_of_pass & (allocations.born[rows] > scene.last_backward_end)]
    paths = (view.modules.paths[module] for module in view.modules.module[rows].tolist())
    is_wide = [
        int(sizes[row]) in wide_sizes.get(path, ())
        for row, path in zip(rows.tolist(), paths, strict=True)
    ]
    return np.asarray(rows[np.array(is_wide, np.bool_)])
