"""A base model that is trained with its adapters, though they are there so that it need not be."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.parameter_uses import training_rows
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import ParameterUse, TensorKind
from vramlens.units import format_size

_ADAPTER = re.compile(r"\.\d+\.(?:.*\.)?(?:lora_?(?:[abAB]|down|up)|adapters?)(?:[._]|$)")
"""In names of parameters of numbered layers: what LoRA's and adapters' are called (peft, diffusers, people's
own). One adapter behind an encoder joins two models.
"""
_MEANT = re.compile(r"modules_to_save|embed|lm_head|\bwte\b")
"""What is trained beside adapters on purpose, such as the rows of new tokens."""
_TIMES = 10
"""As large as the adapters, at least: a head beside them is trained, too."""
_MOST = 0.5
"""Of the model's other parameters, that are trained."""
_LEAST_SHARE = 0.15
"""Of what is in use."""


@after_failure
def trained_base(scene: Scene) -> Iterator[Finding]:
    """The gradients and states of parameters that are no adapters', where a model has adapters and an optimizer
    changes most of its other parameters.
    """
    names, sizes = scene.view.names, scene.device.allocations.requested_bytes
    adapters, other_rows = _adapters_and_others(scene)
    base = other_rows[names.use[other_rows] == ParameterUse.STEPPED]
    base_bytes, adapter_bytes = scene.bytes_of(base), scene.bytes_of(adapters)
    if not adapter_bytes or base_bytes < max(
        _TIMES * adapter_bytes, _MOST * sizes[other_rows].sum()
    ):
        return
    rows = training_rows(names, base, scene.advice_rows)
    size_bytes = scene.bytes_of(rows)
    if size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    largest = int(base[np.argmax(sizes[base])])
    yield Finding(
        id="trained_base",
        verdict=Verdict.LIKELY,
        title=f"the optimizer trains {format_size(base_bytes)} of weights beside"
        f" {format_size(adapter_bytes)} of adapters: {scene.part_of_heap(size_bytes)} are"
        " gradients and states of these weights",
        bytes=size_bytes,
        place=scene.view.place_of_block(largest),
        evidence=(
            f"{names.name(largest)} is trained, and {names.name(int(adapters[0]))} is an adapter",
        ),
        fix="freeze all but the adapters and the head, before the optimizer is built: call"
        " requires_grad_(False) on the others, and check the condition that selects them (at least"
        f" {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )


def _adapters_and_others(scene: Scene) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The adapters that an optimizer changes, and the other parameters of the same models that might be frozen."""
    names = scene.view.names
    rows = names.of_kind(TensorKind.PARAMETER)
    texts = [names.name(row) for row in rows.tolist()]
    is_adapter = np.array([bool(_ADAPTER.search(text)) for text in texts], np.bool_)
    is_adapter &= names.use[rows] == ParameterUse.STEPPED
    models = {
        text.partition(".")[0] for text, is_one in zip(texts, is_adapter, strict=True) if is_one
    }
    is_other = [text.partition(".")[0] in models and not _MEANT.search(text) for text in texts]
    return rows[is_adapter], rows[np.array(is_other, np.bool_) & ~is_adapter]
