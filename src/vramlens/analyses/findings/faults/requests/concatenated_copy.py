"""A copy of all gradients, or of all parameters, in one tensor: made for a norm, or to be sent."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.allocator_sizes import MIN_BLOCK
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size

_FEWEST = 8
"""Tensors that are copied: of fewer, others are as large by chance."""
_NEEDED = re.compile(r"torch[/\\](?:optim|distributed)[/\\]|[/\\](?:deepspeed|megatron)[/\\]")
"""Whose algorithms work on one vector of all: L-BFGS, buckets that are sent."""
_KINDS = {TensorKind.GRADIENT: "gradients", TensorKind.PARAMETER: "parameters"}


@after_failure
def concatenated_copy(scene: Scene) -> Iterator[Finding]:
    """The failed request, if it is as large as all gradients or all parameters together."""
    request = scene.ending_request
    if any(_NEEDED.search(frame.file) for frame in scene.trace.stacks.of(request.stack)):
        return
    for kind, words in _KINDS.items():
        rows = np.intersect1d(scene.view.names.of_kind(kind), scene.advice_rows)
        size_bytes = scene.bytes_of(rows)
        is_as_large = 0 <= size_bytes - request.size_bytes <= MIN_BLOCK * len(rows)
        if len(rows) < _FEWEST or not is_as_large:
            continue
        yield Finding(
            id="concatenated_copy",
            verdict=Verdict.LIKELY,
            title=f"the request is as large as all {len(rows):,} {words} together: a copy of them"
            f" in one tensor, {format_size(request.size_bytes)}",
            bytes=request.size_bytes,
            place=scene.view.place_of_stack(request.stack),
            evidence=("torch.cat and parameters_to_vector make such copies",),
            fix="if only a norm or a sum is wanted, do not concatenate them: a norm is that of"
            " their norms, torch.stack([g.norm() for g in grads]).norm()",
        )
        return
