"""Whole copies of large layers that are trained beside adapters: peft's ``modules_to_save``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vramlens.analyses.attribution.parameter_uses import training_rows
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size, joined

_COPY = ".modules_to_save."
"""In the names of parameters: where peft keeps the copy that is trained (peft/utils/other.py)."""
_LEAST_SHARE = 0.15
"""Of what is in use: a classifier's new head is small."""


@after_failure
def saved_modules(scene: Scene) -> Iterator[Finding]:
    """The copies, with their gradients and states, if they are much of what is in use."""
    names, alive = scene.view.names, scene.advice_rows
    parameters = np.intersect1d(alive, names.of_kind(TensorKind.PARAMETER))
    copies = np.array([row for row in parameters.tolist() if _COPY in names.name(row)], np.int64)
    rows = np.union1d(copies, training_rows(names, copies, alive))
    size_bytes = scene.bytes_of(rows)
    if not len(copies) or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    paths = (names.name(row).partition(_COPY)[0] for row in copies.tolist())
    layers = joined(list(dict.fromkeys(path.rpartition(".")[2] for path in paths)))
    yield Finding(
        id="saved_modules",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are whole copies of {layers} that are trained"
        " beside the adapters (modules_to_save), with their gradients and states",
        bytes=size_bytes,
        place=scene.view.place_of_block(int(copies[0])),
        evidence=("the originals stay beside them, and every state of the optimizer is as large",),
        fix=f"unless tokens were added or a head is new, leave {layers} out of modules_to_save;"
        " for new tokens train only their rows (trainable_token_indices): at least"
        f" {format_size(size_bytes)} less",
        extent=scene.extent(rows),
    )
