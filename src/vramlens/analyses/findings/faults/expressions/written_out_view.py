"""Arithmetic on windows of a series: its result has each entry as often as windows have it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.expressions.costly_expression import shown
from vramlens.analyses.findings.faults.expressions.expression_uses import MUCH
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_WINDOWS = re.compile(
    r"^(?P<name>\w+)\s*=\s*[\w.]+(?:\[[^\]]*\])?\.unfold\((?!.*\.(?:contiguous|clone|reshape)\()"
)
"""A line that assigns windows: a view in which each entry is as often as windows have it."""
_ASSIGNED = re.compile(r"^(\w+)\s*[-+*/]?=(?!=)")


@after_failure
def written_out_view(scene: Scene) -> Iterator[Finding]:
    """The expression that memory ran out in, if a line above made windows of one of its operands."""
    request, expression = scene.ending_request, scene.ending_expression
    place = scene.view.place_of_stack(request.stack)
    if place is None or request.size_bytes < MUCH * scene.wanted_bytes:
        return
    name = _windows(scene, place, expression)
    if name is None:
        return
    size = format_size(request.size_bytes)
    yield Finding(
        id="written_out_view",
        verdict=Verdict.LIKELY,
        title=f"{shown(expression)} makes every window of {name} in memory, where unfold() had made a view: {size} at"
        " once",
        bytes=request.size_bytes,
        place=place,
        evidence=("windows that overlap have the same entries many times",),
        fix="compute this on the series, and call unfold() on the result; or compute it for the windows of a batch,"
        f" where they are used (up to {size} less)",
    )


def _windows(scene: Scene, place: Place, expression: str) -> str | None:
    """The name of an operand that the nearest line above that assigns it made of windows."""
    assigned: set[str] = set()
    for text in scene.source_above(place):
        if text.startswith(("def ", "async def ", "class ")):
            return None
        windows = _WINDOWS.match(text)
        name = "" if windows is None else windows["name"]
        is_operand = re.search(rf"\b{name}\b\)*\s*[-+*/]", expression) is not None
        if name and name not in assigned and is_operand:
            return name
        assigned.update(_ASSIGNED.findall(text))
    return None
