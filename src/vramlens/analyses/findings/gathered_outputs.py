"""Outputs of an evaluation that a trainer gathers on the GPU, batch after batch, until it ends."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK
from vramlens.units import format_size

_GATHERS = re.compile(
    r"transformers[/\\]trainer_pt_utils\.py:(?:torch_pad_and_concatenate|nested_concat|add)$"
)
"""transformers: EvalLoopContainer.add, which evaluation_loop calls with each batch's logits."""
_LEAST_SHARE = 0.05
"""Of the memory in use."""


def gathered_outputs(scene: Scene) -> Iterator[Finding]:
    """What a Trainer has gathered of an evaluation's outputs, and asked for to add the next batch."""
    view, event = scene.view, scene.telling_event
    stacks, allocations = view.trace.stacks, view.device.allocations
    gathers = stacks.any_frame(stacks.mark_frames(_GATHERS))
    if not gathers.any():
        return
    rows = allocations.alive_after(event)
    rows = rows[allocations.stack[rows] != NO_STACK]
    rows = rows[gathers[allocations.stack[rows]]]
    size_bytes = int(allocations.requested_bytes[rows].sum())
    asked_bytes = 0
    if scene.failure is not None and scene.failed_event is not None:
        request = scene.failure.request
        is_own = request.stack < len(stacks) and bool(gathers[request.stack])
        asked_bytes = request.size_bytes if is_own else 0
    if size_bytes + asked_bytes < _LEAST_SHARE * scene.telling_heap.requested_bytes:
        return
    asks = f", and it requests {format_size(asked_bytes)} to add a batch" if asked_bytes else ""
    saved = format_size(size_bytes + asked_bytes)
    yield Finding(
        id="gathered_outputs",
        verdict=Verdict.LIKELY,
        title="the Trainer gathers the outputs of all evaluation batches on the GPU:"
        f" {format_size(size_bytes)} so far{asks}",
        bytes=size_bytes + asked_bytes,
        evidence=("it keeps them until the evaluation ends, for compute_metrics",),
        fix="set TrainingArguments(eval_accumulation_steps=1), which moves them to the CPU after each"
        " batch, or keep less of them with preprocess_logits_for_metrics (the argmax, say): about"
        f" {saved} less",
        extent=Extent(event, np.asarray(rows, np.int64)),
    )
