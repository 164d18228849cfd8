"""Transforms that compute for all entries of a batch at once: vmap, Jacobians, Hessians."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK
from vramlens.units import format_size

_IN_CHUNKS = "pass chunk_size to {name} (a tenth of all to begin with): the results are the same"
_TRANSFORMS = (
    (
        re.compile(r"torch[/\\]autograd[/\\]functional\.py:(?:jacobian|hessian)$"),
        "torch.autograd.functional's Jacobian",
        "where only each sample's own outputs by its own inputs are wanted, use"
        " torch.func.vmap(torch.func.jacrev(f)) over the samples; else torch.func.jacrev(f,"
        " chunk_size=...)",
    ),
    (
        re.compile(
            r"torch[/\\]_functorch[/\\]eager_transforms\.py:(?:jacrev|jacfwd|hessian|wrapper_fn)$"
        ),
        "torch.func.jacrev",
        _IN_CHUNKS.format(name="jacrev"),
    ),
    (
        re.compile(r"torch[/\\]_functorch[/\\](?:vmap|apis)\.py:"),
        "torch.func.vmap",
        _IN_CHUNKS.format(name="vmap"),
    ),
)
"""Frames of each, its name, and what to change."""
_LEAST_SHARE = 0.25


def vectorized_transform(scene: Scene) -> Iterator[Finding]:
    """The transform in which memory ran out, if what it makes is much of all. Its backward passes run
    on another thread: their requests have no line, and follow one that has.
    """
    request = scene.ending_request
    if request is None:
        return
    allocations, stacks = scene.device.allocations, scene.trace.stacks
    has_line = stacks.user_frame >= 0
    known = allocations.stack != NO_STACK
    known[known] = has_line[allocations.stack[known]]
    with_line = np.flatnonzero(known & (allocations.born < scene.advice_event))
    if not len(with_line):
        return
    newest = int(with_line[-1])
    for pattern, name, fix in _TRANSFORMS:
        in_transform = stacks.within(pattern, allocations.stack[with_line])
        if not in_transform[-1]:
            continue
        outside = with_line[~np.asarray(in_transform)]
        begins = int(allocations.born[outside[-1]]) if len(outside) else 0
        rows = scene.advice_rows[allocations.born[scene.advice_rows] > begins]
        size_bytes = int(allocations.requested_bytes[rows].sum()) + request.size_bytes
        if size_bytes < _LEAST_SHARE * (scene.advice_heap.requested_bytes + request.size_bytes):
            return
        yield Finding(
            id="vectorized_transform",
            verdict=Verdict.LIKELY,
            title=f"{name} computes all at once: {format_size(size_bytes)}, with the request that"
            " failed",
            bytes=size_bytes,
            place=scene.view.place_of_block(newest),
            evidence=("memory ran out inside of it",),
            fix=fix,
        )
        return
