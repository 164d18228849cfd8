"""State dicts of several models that are loaded to the GPU, where no model runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size

_OF_PARAMETER = re.compile(r"\['(?P<key>[\w.]+\.(?:weight|bias))'\]$")
_LOADS = re.compile(r"\b(?:torch\.load|load_file|safe_open|load_state_dict)\(")
_FEWEST_MODELS = 3
_LEAST_SHARE = 0.5


@after_failure
def state_dicts(scene: Scene) -> Iterator[Finding]:
    """The weights that dicts of the program keep, if most of what is in use is that, and several dicts have the same
    keys.
    """
    names = scene.view.names
    runs = scene.view.modules.marked.any() or len(scene.view.phases.span_start)
    if runs or len(names.of_kind(TensorKind.PARAMETER)) or not scene.is_in_source(_LOADS):
        return
    keys = {row: _OF_PARAMETER.search(names.name(row)) for row in scene.program_rows.tolist()}
    key_of_row = {row: match["key"] for row, match in keys.items() if match is not None}
    models = max(Counter(key_of_row.values()).values(), default=0)
    rows = np.array(sorted(key_of_row), np.int64)
    size_bytes = scene.bytes_of(rows)
    if models < _FEWEST_MODELS or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    yield Finding(
        id="state_dicts",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are the weights of {models} models or more, in"
        " dicts on the GPU",
        bytes=size_bytes,
        place=scene.view.place_of_block(int(rows[-1])),
        evidence=("several have the same keys, and no model has run",),
        fix='load them to the CPU (torch.load(path, map_location="cpu"); safetensors: device="cpu"), and move what is'
        " computed with there: one key of all models at a time, say"
        f" (up to {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )
