"""A file whose tensors are all loaded to the GPU, by a load in which memory runs out."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import PACKAGES
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size

_READS_FILE = re.compile(
    r"torch[/\\]serialization\.py:_?(?:legacy_)?load"
    rf"|[/\\]{PACKAGES}[/\\]safetensors[/\\]torch\.py:load"
)
_LEAST_SHARE = 0.25
"""Of what is in use and requested."""


@after_failure
def loaded_whole(scene: Scene) -> Iterator[Finding]:
    """What a load has put on the GPU so far, if memory runs out inside of it."""
    request = scene.ending_request
    view, allocations, rows = scene.view, scene.device.allocations, scene.advice_rows
    reads_file = view.trace.stacks.within(
        _READS_FILE, np.append(allocations.stack[rows], np.uint32(request.stack))
    )
    if not reads_file[-1]:
        return
    place = view.place_of_stack(request.stack)
    is_of_line = np.array([view.place_of_block(row) == place for row in rows.tolist()], np.bool_)
    of_model = view.names.of_kind(TensorKind.PARAMETER, TensorKind.BUFFER)
    loaded = np.setdiff1d(rows[reads_file[:-1] & is_of_line], of_model)
    size_bytes = scene.bytes_of(loaded) + request.size_bytes
    if size_bytes < _LEAST_SHARE * (scene.advice_heap.requested_bytes + request.size_bytes):
        return
    yield Finding(
        id="loaded_whole",
        verdict=Verdict.LIKELY,
        title=f"Loading puts all of a file on the GPU: {format_size(size_bytes)} with this request",
        bytes=size_bytes,
        place=place,
        evidence=("memory ran out in the load, before anything used what it has read",),
        fix='load to the CPU, with map_location="cpu" (safetensors: device="cpu"): load_state_dict copies to the'
        f" GPU what the model has, and nothing else stays there (up to {format_size(size_bytes)}"
        " less)",
        extent=scene.extent(loaded),
    )
