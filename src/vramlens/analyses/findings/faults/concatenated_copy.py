"""A copy of all gradients, or of all parameters, in one tensor: made for a norm, or to be sent."""

from __future__ import annotations

from collections.abc import Iterator

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size

_ROUNDED_TO = 512
_FEWEST = 8
"""Tensors that are copied: of fewer, others are as large by chance."""
_KINDS = {TensorKind.GRADIENT: "gradients", TensorKind.PARAMETER: "parameters"}


def concatenated_copy(scene: Scene) -> Iterator[Finding]:
    """The failed request, if it is as large as all gradients or all parameters together."""
    failure = scene.failure
    if failure is None or not scene.is_ended_by_failure:
        return
    sizes = scene.device.allocations.requested_bytes
    alive = set(scene.device.allocations.alive_after(scene.advice_event).tolist())
    request_bytes = failure.request.size_bytes
    for kind, words in _KINDS.items():
        rows = [row for row in scene.view.names.of_kind(kind).tolist() if row in alive]
        size_bytes = int(sizes[rows].sum())
        is_as_large = 0 <= size_bytes - request_bytes <= _ROUNDED_TO * len(rows)
        if len(rows) < _FEWEST or not is_as_large:
            continue
        yield Finding(
            id="concatenated_copy",
            verdict=Verdict.LIKELY,
            title=f"the request is as large as all {len(rows):,} {words} together: a copy of them in"
            f" one tensor, {format_size(request_bytes)}",
            bytes=request_bytes,
            place=scene.view.place_of_stack(failure.request.stack),
            evidence=("torch.cat, or parameters_to_vector, copies all of them",),
            fix="work on one tensor after another: a norm is that of their norms"
            " (torch.nn.utils.get_total_norm, or torch.stack([g.norm() for g in grads]).norm())",
        )
        return
