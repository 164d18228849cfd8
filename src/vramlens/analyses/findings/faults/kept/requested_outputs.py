"""Attention weights and hidden states of all layers, which a transformers model returns where it is asked to."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.attribution.training import turns_with
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_OUTPUT = re.compile(r"(?:^|[.'_])(?P<kind>attentions|hidden_states)(?:'\])?\[\d+\]")
_MODEL_OF = re.compile(r"[/\\]transformers[/\\]")
_LEAST_SHARE = 0.25
_KINDS = {
    "attentions": "attention weights of all layers, a number for each pair of positions",
    "hidden_states": "hidden states of all layers",
}


@after_failure
def requested_outputs(scene: Scene) -> Iterator[Finding]:
    """Those of the larger kind, if a transformers model made them and they are much of what is in use."""
    view, allocations = scene.view, scene.device.allocations
    rows_of: defaultdict[str, list[int]] = defaultdict(list)
    for row in scene.program_rows.tolist():
        output = _OUTPUT.search(view.names.name(row))
        if output is not None:
            rows_of[output["kind"]].append(row)
    bytes_of = {kind: scene.bytes_of(rows) for kind, rows in rows_of.items()}
    kind = max(bytes_of, key=bytes_of.__getitem__, default="")
    size_bytes = bytes_of.get(kind, 0)
    if not size_bytes or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    rows = np.array(rows_of[kind], np.int64)
    if not view.trace.stacks.within(_MODEL_OF, allocations.stack[rows]).all():
        return
    if turns_with(scene.pass_begins, allocations.born[rows]) > 1:
        return  # outputs of several passes, which the program collects
    option = f"output_{kind}=True"
    is_asked = scene.is_in_source(re.compile(option))
    beside = ", which also has the model compute them in full" if kind == "attentions" else ""
    yield Finding(
        id="requested_outputs",
        verdict=Verdict.LIKELY if is_asked else Verdict.POSSIBLE,
        title=f"{scene.part_of_heap(size_bytes)} are {_KINDS[kind]}, which the model keeps to"
        " return them",
        bytes=size_bytes,
        place=view.place_of_block(int(rows[-1])),
        evidence=(f"it was called with {option}{beside}",) if is_asked else (),
        fix=f"leave {option} out (of the call, or of the config), unless they are used; of a few"
        f" layers, a hook can keep what is used (at least {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )
