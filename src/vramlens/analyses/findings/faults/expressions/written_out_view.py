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
    r"^(?P<name>\w+)\s*=\s*(?!.*\b(?:F|functional|self)\.unfold\()(?!.*\.unfold\(.*\.unfold\().+\.unfold\((?!.*\.(?:contiguous|clone|reshape)\()"
)
"""A line that assigns windows: a view in which each entry is as often as windows have it."""
_SUM = re.compile(
    r"\beinsum\(\s*[\"'](?P<first>\w+)\s*,\s*(?P<second>\w+)\s*->\s*(?P<output>\w*)[\"']"
)
"""An einsum of two, which copies what it cannot take as it is."""
_STEP = re.compile(r"\.unfold\(\s*[^,()]+,\s*(?P<size>[^,()]+),\s*(?P<step>[^,()]+)\)")
_AS_ARITHMETIC = (
    "compute this on the series, and call unfold() on the result; or compute it for the windows of a batch,"
    " where they are used"
)
_AS_CONVOLUTION = (
    "a sum over each window is a convolution: F.conv1d of the series with the same weights (groups=n for n series with"
    " weights of their own); with long windows a product of Fourier transforms, torch.fft.irfft(torch.fft.rfft(x, n) *"
    " torch.fft.rfft(w.flip(-1), n), n), n both lengths together"
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
            if re.search(rf"\b{name}\b\)*\s*[-+*/]", expression):
                return name, ""
            if _is_sum_over_windows(expression, name) and _do_overlap(text):
                return "", name
        assigned.update(_ASSIGNED.findall(text))
    return "", ""


def _do_overlap(text: str) -> bool:
    """Whether windows have entries in common, as far as their size and step say."""
    steps = _STEP.search(text)
    return steps is None or steps["size"].strip() != steps["step"].strip()


def _is_sum_over_windows(expression: str, name: str) -> bool:
    """Whether an einsum adds up over the entries of windows, its last index, and makes nothing that they have not."""
    equation = _SUM.search(expression)
    operands = re.search(
        rf"->\s*\w*[\"']\s*,\s*(?P<leading>{name}\b)?[^,]*(?:,\s*{name}\b)?", expression
    )
    if equation is None or operands is None or not re.search(rf",\s*{name}\b", expression):
        return False
    windows = equation["first" if operands["leading"] else "second"]
    return windows[-1] not in equation["output"] and set(equation["output"]) <= set(windows)
