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
    r"^(?P<name>\w+)\s*=\s*(?!.*\b(?:F|functional)\.unfold\().+\.unfold\((?!.*\.(?:contiguous|clone|reshape)\()"
)
"""A line that assigns windows: a view in which each entry is as often as windows have it."""
_PRODUCTS = r"\b(?:einsum|bmm|tensordot)\([^()]*"
"""Those that copy what they cannot take as it is."""
_AS_ARITHMETIC = (
    "compute this on the series, and call unfold() on the result; or compute it for the windows of a batch,"
    " where they are used"
)
_AS_CONVOLUTION = (
    "a sum over each window is a convolution: F.conv1d (groups=n for n series with weights of their own), and with"
    " long windows a product of Fourier transforms, torch.fft.irfft(torch.fft.rfft(x, n) * torch.fft.rfft(w, n), n)"
    " with an n of both lengths together, weights not reversed"
)
_ASSIGNED = re.compile(r"^(\w+)\s*[-+*/]?=(?!=)")


@after_failure
def written_out_view(scene: Scene) -> Iterator[Finding]:
    """The expression that memory ran out in, if a line above made windows of one of its operands."""
    request, expression = scene.ending_request, scene.ending_expression
    place = scene.view.place_of_stack(request.stack)
    if place is None or request.size_bytes < MUCH * scene.wanted_bytes:
        return
    arithmetic, product = _windows(scene, place, expression)
    name = arithmetic or product
    if not name:
        return
    remedy = _AS_ARITHMETIC if arithmetic else _AS_CONVOLUTION
    size = format_size(request.size_bytes)
    yield Finding(
        id="written_out_view",
        verdict=Verdict.LIKELY,
        title=f"{shown(expression)} makes every window of {name} in memory, where unfold() had made a view: {size} at"
        " once",
        bytes=request.size_bytes,
        place=place,
        evidence=("windows that overlap have the same entries many times",),
        fix=f"{remedy} (up to {size} less)",
    )


def _windows(scene: Scene, place: Place, expression: str) -> tuple[str, str]:
    """The operand that the nearest line above that assigns it made of windows: of arithmetic, or of a product; "" of
    others.
    """
    assigned: set[str] = set()
    for text in scene.source_above(place):
        if text.startswith(("def ", "async def ", "class ")):
            break
        windows = _WINDOWS.match(text)
        name = "" if windows is None else windows["name"]
        if name and name not in assigned:
            arithmetic = re.search(rf"\b{name}\b\)*\s*[-+*/]", expression)
            product = re.search(rf"{_PRODUCTS}\b{name}\b", expression)
            if arithmetic or product:
                return (name, "") if arithmetic else ("", name)
        assigned.update(_ASSIGNED.findall(text))
    return "", ""
