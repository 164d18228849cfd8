"""A call in the expression that failed which makes more than is often needed."""

from __future__ import annotations

from collections.abc import Iterator

from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.requests.expression_uses import use_of_expression
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_LEAST_SHARE = 0.25
"""Of what is in use, with the failed request: a smaller one failed for what was there already."""
_LONGEST = 60
"""Letters of the expression that are shown."""


def costly_expression(scene: Scene) -> Iterator[Finding]:
    """The call that memory ran out in, if it asked for much at once and something else may do."""
    request, use = scene.ending_request, use_of_expression(scene.ending_expression)
    if request is None or use is None:
        return
    in_all = scene.advice_heap.requested_bytes + request.size_bytes
    if request.size_bytes < _LEAST_SHARE * in_all:
        return
    yield Finding(
        id="costly_expression",
        verdict=Verdict.LIKELY,
        title=f"{shown(scene.ending_expression)} {use.reading}: {format_size(request.size_bytes)} at"
        " once",
        bytes=request.size_bytes,
        place=scene.view.place_of_stack(request.stack),
        evidence=("that is the expression that failed",),
        fix=f"{use.fix} (up to {format_size(request.size_bytes)} less)",
    )


def shown(expression: str) -> str:
    """An expression as answers show it: its begin, where it is long."""
    return expression if len(expression) <= _LONGEST else f"{expression[: _LONGEST - 1]}…"
