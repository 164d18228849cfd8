"""A checkpoint that was loaded to the GPU, and stays there beside the model that it was for."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.attribution.categories import loading_rows
from vramlens.analyses.attribution.names import LAST_KEY
from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.usage import part_of_heap
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size

_LEAST_SHARE = 0.1
_OF_OPTIMIZER = re.compile(
    r"\['(?:exp_avg(?:_sq)?|max_exp_avg_sq|momentum_buffer|square_avg|step)'\]$"
)


@after_failure
def kept_checkpoint(scene: Scene) -> Iterator[Finding]:
    """What a load left on the GPU that is of no model, by keys as a model's and an optimizer's state have them."""
    view, sizes = scene.view, scene.device.allocations.requested_bytes
    rows = scene.program_rows
    rows = rows[loading_rows(view.trace.stacks, scene.device.allocations.stack[rows])]
    keys = _keys_of_parameters(scene)
    is_state = [_is_of_state(view.names.name(row), keys) for row in rows.tolist()]
    rows = rows[np.array(is_state, np.bool_)]
    size_bytes, heap = int(sizes[rows].sum()), scene.advice_heap
    has_optimizer = any(_OF_OPTIMIZER.search(view.names.name(row)) for row in rows.tolist())
    if not has_optimizer or size_bytes < _LEAST_SHARE * heap.requested_bytes:
        return  # weights alone may be an average, or a reference, that each step needs
    yield Finding(
        id="kept_checkpoint",
        verdict=Verdict.LIKELY,
        title=f"{part_of_heap(size_bytes, heap)} are a checkpoint that was loaded to the GPU, beside the model that has"
        " its own copy",
        bytes=size_bytes,
        place=view.place_of_block(scene.device.allocations.largest_of(rows)),
        evidence=("its keys are those of the model's parameters and of an optimizer's state",),
        fix='load it to the CPU, torch.load(path, map_location="cpu"): load_state_dict() copies to the GPU what the'
        " model and the optimizer need; or delete it once they have loaded it"
        f" (about {format_size(size_bytes)} less)",
        extent=Extent(scene.advice_event, rows),
    )


def _keys_of_parameters(scene: Scene) -> frozenset[str]:
    """The names of the parameters without the model's own, as a state dict has them."""
    names = scene.view.names
    rows = names.of_kind(TensorKind.PARAMETER).tolist()
    return frozenset(names.name(row).partition(".")[2] for row in rows) - {""}


def _is_of_state(name: str, keys: frozenset[str]) -> bool:
    """Whether an entry's last key is one of an optimizer's state, or the name of a parameter."""
    last = LAST_KEY.search(name)
    return _OF_OPTIMIZER.search(name) is not None or (last is not None and last["key"] in keys)
