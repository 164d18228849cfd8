"""A copy of a DistributedDataParallel, which makes gradient buckets of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_COPY = re.compile(r"torch[/\\]nn[/\\]parallel[/\\]distributed\.py:__setstate__$")
"""Builds the buckets of what was copied, or unpickled."""
_BY_COPY = re.compile(r"[/\\]copy\.py:(?:deepcopy|_reconstruct)$")
_LEAST_SHARE = 0.05
"""Of what is in use."""


def copied_ddp(scene: Scene) -> Iterator[Finding]:
    """The buckets of copies at the failure, else at the peak."""
    allocations, rows = scene.device.allocations, scene.advice_rows
    for pattern in (_COPY, _BY_COPY):
        rows = rows[scene.trace.stacks.within(pattern, allocations.stack[rows])]
    size_bytes = scene.bytes_of(rows)
    if not len(rows) or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    yield Finding(
        id="copied_ddp",
        verdict=Verdict.PROVEN,
        title=f"{scene.part_of_heap(size_bytes)} are gradient buckets of a copied"
        " DistributedDataParallel",
        bytes=size_bytes,
        place=scene.view.place_of_block(allocations.largest_of(rows)),
        evidence=(
            "a copy of the wrapper makes buckets of its own, as large as the parameters to train",
        ),
        fix=f"copy the model inside of it: copy.deepcopy(ddp.module) ({format_size(size_bytes)}"
        " less)",
        extent=scene.extent(rows),
    )
