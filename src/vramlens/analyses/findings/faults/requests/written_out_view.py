"""Arithmetic on a view that shows entries more than once: its result has each of them as often."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.requests.costly_expression import shown
from vramlens.analyses.findings.faults.requests.expression_uses import MUCH
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_VIEW = re.compile(
    r"^(?P<name>\w+)\s*=\s*[\w.]+(?:\[[^\]]*\])?\.(?P<call>unfold|expand|expand_as|broadcast_to|as_strided)\("
    r"(?!.*\.(?:contiguous|clone|reshape)\()"
)
"""A line that assigns such a view."""
_LINES_BEFORE = 6
"""Whose text a recording has (capture/triggers/source_lines.py)."""


@after_failure
def written_out_view(scene: Scene) -> Iterator[Finding]:
    """The expression that memory ran out in, if a line above it made one of its operands by repeating entries."""
    request, expression = scene.ending_request, scene.ending_expression
    place = None if request is None else scene.view.place_of_stack(request.stack)
    if request is None or place is None or request.size_bytes < MUCH * scene.wanted_bytes:
        return
    view = _operand(scene, place, expression)
    if view is None:
        return
    name, call = view
    size = format_size(request.size_bytes)
    yield Finding(
        id="written_out_view",
        verdict=Verdict.LIKELY,
        title=f"{shown(expression)} writes out {name}, of which {call}() had made a view: {size} at once",
        bytes=request.size_bytes,
        place=place,
        evidence=("the view takes no memory, and has the same entries many times",),
        fix=f"compute this on what {call}() is given, and call {call}() after it; or compute it for a part of {name} at"
        f" a time, where that is used (up to {size} less)",
    )


def _operand(scene: Scene, place: Place, expression: str) -> tuple[str, str] | None:
    """The name of an operand that a line above made a view, and the call that made it."""
    for number in range(1, _LINES_BEFORE + 1):
        text = scene.source_of(Place(place.file, place.line - number, place.function))
        view = _VIEW.match(text)
        if view is not None and re.search(rf"\b{view['name']}\b\)*\s*[-+*/]", expression):
            return view["name"], view["call"]
    return None
