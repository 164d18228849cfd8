"""Gradients of embeddings that are as large as the table, for the few rows that a step uses."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.attribution.phases import LINEAR_FORWARD
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene
from vramlens.ground.allocator_sizes import block_size
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size

_EMBEDDING = re.compile(r"torch[/\\]nn[/\\]modules[/\\]sparse\.py:forward$")
_LEAST_SHARE = 0.2
"""Of what is in use, with the failed request."""


def dense_embedding_gradient(scene: Scene) -> Iterator[Finding]:
    """The table whose gradient was asked for when memory ran out in a backward pass, if it is large."""
    request = scene.ending_request
    if request is None or not _is_in_backward(scene):
        return
    request_bytes = request.size_bytes
    if request_bytes < _LEAST_SHARE * scene.wanted_bytes:
        return
    table = _table_of(scene, request_bytes)
    if not table:
        return
    yield Finding(
        id="dense_embedding_gradient",
        verdict=Verdict.LIKELY,
        title=f"the gradient of {table} is as large as the table: {format_size(request_bytes)} for the"
        " rows of one step, and as much again for each further look-up",
        bytes=request_bytes,
        place=scene.verdict.place if scene.verdict is not None else None,
        evidence=("an embedding's gradient is dense unless it is made with sparse=True",),
        fix="make it nn.Embedding(..., sparse=True) and give the table an optimizer of its own,"
        " torch.optim.SparseAdam (Adam, AdamW, weight decay and clip_grad_norm_ do not take sparse"
        f" gradients): at least {format_size(request_bytes)} less",
    )


def _is_in_backward(scene: Scene) -> bool:
    phases, event = scene.view.phases, scene.advice_event
    return bool(((phases.span_start <= event) & (phases.span_end >= event)).any())


def _table_of(scene: Scene, size_bytes: int) -> str:
    """The name of the embedding's weight of that size; "" without one, and where a linear layer may
    share it: then its gradient is dense whatever the embedding says.
    """
    view, allocations = scene.view, scene.device.allocations
    parameters = {
        view.names.name(row): row for row in view.names.of_kind(TensorKind.PARAMETER).tolist()
    }
    if any(f"{path}.weight" not in parameters for path in _modules_within(scene, LINEAR_FORWARD)):
        return ""
    looked_up = _modules_within(scene, _EMBEDDING)
    for name, row in parameters.items():
        row_bytes = int(allocations.requested_bytes[row])
        is_as_large = block_size(row_bytes) == block_size(size_bytes)
        if is_as_large and name.rpartition(".")[0] in looked_up:
            return name
    return ""


def _modules_within(scene: Scene, pattern: re.Pattern[str]) -> set[str]:
    """The modules whose requests went through such a frame."""
    modules, stack = scene.view.modules, scene.device.allocations.stack
    rows = np.flatnonzero(scene.trace.stacks.within(pattern, stack) & modules.marked)
    return {modules.paths[module] for module in np.unique(modules.module[rows]).tolist()}
