"""A base model that is trained with its adapters, though they are there so that it need not be."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.usage import part_of_heap
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.trace import ParameterUse, TensorKind
from vramlens.units import format_size

_ADAPTER = re.compile(r"\.(?:lora_?(?:[abAB]|down|up)|adapters?)(?:[._]|$)")
"""In names of parameters: what LoRA's and adapters' are called (peft, diffusers, people's own)."""
_TIMES = 10
"""As large as the adapters, at least: a head beside them is trained, too."""
_LEAST_SHARE = 0.15
"""Of what is in use."""


def trained_base(scene: Scene) -> Iterator[Finding]:
    """The gradients and states of parameters that are no adapters', where the model has adapters and an optimizer
    changes nearly all of its parameters.
    """
    if scene.ending_request is None:
        return
    names, sizes = scene.view.names, scene.device.allocations.requested_bytes
    parameters = names.of_kind(TensorKind.PARAMETER)
    trained = parameters[names.use[parameters] == ParameterUse.STEPPED]
    is_adapter = np.array(
        [bool(_ADAPTER.search(names.name(row))) for row in trained.tolist()], bool
    )
    base, adapters = trained[~is_adapter], trained[is_adapter]
    base_bytes, adapter_bytes = int(sizes[base].sum()), int(sizes[adapters].sum())
    if not adapter_bytes or base_bytes < _TIMES * adapter_bytes:
        return
    owners = {f"{names.name(row)}]" for row in base.tolist()}
    made = names.of_kind(TensorKind.GRADIENT, TensorKind.OPTIMIZER_STATE)
    made = np.intersect1d(scene.advice_rows, made)
    is_of_base = [names.name(row).partition("[")[2] in owners for row in made.tolist()]
    rows = made[np.array(is_of_base, bool)]
    size_bytes = int(sizes[rows].sum())
    if size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    largest = int(base[np.argmax(sizes[base])])
    yield Finding(
        id="trained_base",
        verdict=Verdict.LIKELY,
        title=f"the optimizer trains {format_size(base_bytes)} of weights beside {format_size(adapter_bytes)} of"
        f" adapters: {part_of_heap(size_bytes, scene.advice_heap)} are gradients and states of these weights",
        bytes=size_bytes,
        place=scene.view.place_of_block(largest),
        evidence=(
            f"{names.name(largest)} is trained, and {names.name(int(adapters[0]))} is an adapter",
        ),
        fix="freeze all but the adapters and the head, before the optimizer is built: call requires_grad_(False) on"
        f" the others, and look at the test that picks them (at least {format_size(size_bytes)} less)",
        extent=Extent(scene.advice_event, rows),
    )
