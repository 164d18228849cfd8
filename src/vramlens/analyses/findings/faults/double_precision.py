"""Double precision: what NumPy's arrays bring to the GPU, and all that is computed from them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.usage import part_of_heap
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_TYPES = ("float64", "complex128")
_LEAST_SHARE = 0.5
"""Of what is in use: with less, the rest is what a smaller type would not change."""


def double_precision(scene: Scene) -> Iterator[Finding]:
    """Most of what is in use when memory runs out, if its numbers are twice as wide as usual."""
    if scene.ending_request is None:
        return
    heap, shapes = scene.advice_heap, scene.advice_shapes
    wide_rows = np.array([row for row, shape in shapes.items() if shape.type in _TYPES], np.int64)
    sizes = scene.device.allocations.requested_bytes[wide_rows]
    size_bytes = int(sizes.sum())
    if not size_bytes or size_bytes < _LEAST_SHARE * heap.requested_bytes:
        return
    largest = int(wide_rows[np.argmax(sizes)])
    wide_type = shapes[largest].type
    yield Finding(
        id="double_precision",
        verdict=Verdict.LIKELY,
        title=f"{part_of_heap(size_bytes, heap)} are in double precision ({wide_type})",
        bytes=size_bytes // 2,
        place=scene.view.place_of_block(largest),
        evidence=(
            "NumPy's arrays are float64, and what is computed from them is, too",
            f"the largest takes {format_size(int(sizes.max()))}",
        ),
        fix="unless the result needs it, convert the inputs to single precision (float32, complex64) as"
        f" they go to the GPU (about {format_size(size_bytes // 2)} less)",
        extent=Extent(scene.advice_event, wide_rows),
    )
