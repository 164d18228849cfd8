"""Weights in single precision that nothing trains: half as wide is enough for most models."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vramlens.analyses.attribution.training import Training
from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.usage import part_of_heap
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size

_LEAST_SHARE = 0.5


def wide_weights(scene: Scene) -> Iterator[Finding]:
    """Parameters in float32, if they are most of what is in use when memory runs out, and no backward pass
    ran: likely where a model has run.
    """
    view, heap = scene.view, scene.advice_heap
    if scene.ending_request is None or len(view.phases.span_start):
        return
    rows = np.intersect1d(view.names.of_type(("float32",), TensorKind.PARAMETER), scene.advice_rows)
    size_bytes = int(scene.device.allocations.requested_bytes[rows].sum())
    if not size_bytes or size_bytes < _LEAST_SHARE * heap.requested_bytes:
        return
    is_served = view.training == Training.ABSENT and bool(view.modules.marked.any())
    yield Finding(
        id="wide_weights",
        verdict=Verdict.LIKELY if is_served else Verdict.POSSIBLE,
        title=f"{part_of_heap(size_bytes, heap)} are weights in float32, PyTorch's default",
        bytes=size_bytes // 2,
        place=view.place_of_block(int(rows[0])),
        evidence=("no backward pass ran: a model that only answers works with numbers of 16 bits",)
        if is_served
        else ("no backward pass ran yet",),
        fix="load the weights in bfloat16 (dtype=torch.bfloat16 for from_pretrained; else"
        " model.to(torch.bfloat16) before it is moved to the GPU): results are rounded to 8 bits, and"
        f" about {format_size(size_bytes // 2)} less are in use",
        extent=Extent(scene.advice_event, rows),
    )
