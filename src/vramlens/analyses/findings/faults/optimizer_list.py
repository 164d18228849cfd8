"""Temporaries of an optimizer for all parameters at once: what its foreach form makes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vramlens.analyses.failure.first_step.optimizer_lists import rest_of_list, size_of_list
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_FOREACH = re.compile(r"torch[/\\]optim[/\\](?P<file>\w+)\.py$")
_FUSED = ("adam", "adamw", "sgd")
"""Modules of PyTorch's optimizers that have a fused form, which makes no such lists."""


def optimizer_list(scene: Scene) -> Iterator[Finding]:
    """The list of temporaries that was being made when the request failed."""
    request = scene.ending_request
    if request is None:
        return
    innermost = scene.trace.stacks.of(request.stack)[:1]
    optimizer = _FOREACH.search(innermost[0].file) if innermost else None
    if optimizer is None or not innermost[0].function.startswith("_multi_tensor_"):
        return
    rest_bytes = rest_of_list(scene.view, request)
    if not rest_bytes:
        return
    list_bytes = rest_bytes + size_of_list(scene.view, request)
    form = "fused=True" if optimizer["file"] in _FUSED else "foreach=False"
    yield Finding(
        id="optimizer_list",
        verdict=Verdict.LIKELY,
        title=f"The optimizer's step makes a temporary of every parameter at once: "
        f"{format_size(list_bytes)}",
        bytes=list_bytes,
        place=scene.view.place_of_stack(request.stack),
        evidence=(
            "this is the foreach form, the default on a GPU; parameters, gradients and state stay "
            "beside it",
            f"{format_size(rest_bytes)} of the list were still to come",
        ),
        fix=f"pass {form} to the optimizer{_without_foreach(form)}: it works without the list (up to"
        f" {format_size(list_bytes)} less in its step)",
    )


def _without_foreach(form: str) -> str:
    """PyTorch refuses an optimizer that is told to be both."""
    return " (and no foreach=True)" if form == "fused=True" else ""
