"""Weights in single precision that nothing trains: half as wide is enough for most models."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.training import Training
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import ParameterUse, TensorKind
from vramlens.units import format_size

_LEAST_SHARE = 0.5
_MOST_TRAINED = 0.2
"""Of the frozen weights, that is trained beside them: adapters, a head."""
_CASTS = re.compile(r"peft[/\\]utils[/\\]other\.py:prepare_model_for_kbit_training$")
"""peft: converts all parameters that are not quantized."""


@after_failure
def wide_weights(scene: Scene) -> Iterator[Finding]:
    """Parameters in float32, if they are most of what is in use when memory runs out, and nothing trains
    them: no backward pass ran, or they are frozen. Likely where a model has run, and where they are frozen
    beside parameters that an optimizer has.
    """
    view = scene.view
    float32 = view.names.of_type(("float32",), TensorKind.PARAMETER)
    rows = np.intersect1d(float32, scene.advice_rows)
    frozen = rows[view.names.use[rows] == ParameterUse.FROZEN]
    least_bytes = max(_LEAST_SHARE * scene.advice_heap.requested_bytes, 1)
    parameters = np.intersect1d(view.names.of_kind(TensorKind.PARAMETER), scene.advice_rows)
    stepped_bytes = _bytes(scene, parameters[view.names.use[parameters] == ParameterUse.STEPPED])
    # Where as much is trained, they may be an average, which needs more than 16 bits.
    are_frozen = _bytes(scene, frozen) >= max(least_bytes, stepped_bytes / _MOST_TRAINED)
    if are_frozen:
        rows = frozen
    elif len(view.phases.span_start) or _bytes(scene, rows) < least_bytes:
        return
    size_bytes = _bytes(scene, rows)
    is_served = view.training == Training.ABSENT and bool(view.modules.marked.any())
    yield Finding(
        id="wide_weights",
        verdict=Verdict.LIKELY if is_served or are_frozen else Verdict.POSSIBLE,
        title=f"{scene.part_of_heap(size_bytes)} are weights in float32, PyTorch's default",
        bytes=size_bytes // 2,
        place=view.place_of_block(int(rows[0])),
        evidence=(_reason(is_served=is_served, are_frozen=are_frozen),),
        fix=f"{_remedy(scene, rows)} (about {format_size(size_bytes // 2)} less)",
        extent=scene.extent(rows),
    )


def _bytes(scene: Scene, rows: NDArray[np.int64]) -> int:
    return scene.bytes_of(rows)


def _reason(*, is_served: bool, are_frozen: bool) -> str:
    if are_frozen:
        return "they are frozen, beside few that are trained: what never changes needs no 32 bits"
    if is_served:
        return "no backward pass ran: a model that only answers works with numbers of 16 bits"
    return "no backward pass ran yet"


def _remedy(scene: Scene, rows: NDArray[np.int64]) -> str:
    is_cast = scene.trace.stacks.within(_CASTS, scene.device.allocations.stack[rows])
    if 2 * is_cast.sum() > len(rows):
        return (
            "leave prepare_model_for_kbit_training out where the model is not quantized: it"
            " converts all weights to float32, and get_peft_model freezes them without it"
        )
    return (
        "load the weights in bfloat16 (dtype=torch.bfloat16 for from_pretrained; else"
        " model.to(torch.bfloat16) before it is moved to the GPU): results are rounded to 8 bits"
    )
