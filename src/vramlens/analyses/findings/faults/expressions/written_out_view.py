"""Arithmetic on windows of a series: its result has each entry as often as windows have it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.expressions.costly_expression import shown
from vramlens.analyses.findings.faults.expressions.einsum_order import parts_of
from vramlens.analyses.findings.faults.expressions.expression_parts import (
    equation_of,
    operands,
    value_of,
    within,
    without_views,
)
from vramlens.analyses.findings.faults.expressions.uses.expression_uses import MUCH
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_WINDOWS = re.compile(
    r"^(?P<name>\w+)\s*=\s*(?!.*\b(?:F|functional|self)\.unfold\()(?!.*\.unfold\(.*\.unfold\().+\.unfold\((?!.*\.(?:contiguous|clone|reshape)\()"
)
"""A line that assigns windows: a view in which each entry is as often as windows have it."""
_STEP = re.compile(r"\.unfold\(\s*[^,()]+,\s*(?P<size>[^,()]+),\s*(?P<step>[^,()]+)\)")
_AS_ARITHMETIC = (
    "compute this on the series, and call unfold() on the result; or compute it for the windows of"
    " a batch, where they are used"
)
_AS_CONVOLUTION = (
    "a sum over each window is a convolution: F.conv1d of the series with the same weights"
    " (groups=n for n series with weights of their own); with long windows a product of Fourier"
    " transforms, torch.fft.irfft(torch.fft.rfft(x, n) * torch.fft.rfft(w.flip(-1), n), n), n both"
    " lengths together"
)
_ASSIGNED = re.compile(r"^(\w+)\s*[-+*/]?=(?!=)")


@after_failure
def written_out_view(scene: Scene) -> Iterator[Finding]:
    """The expression that memory ran out in, if a line above made windows of one of its operands."""
    request, expression = scene.ending_request, scene.ending_expression
    place = scene.view.place_of_stack(request.stack)
    if place is None or request.size_bytes < MUCH * scene.wanted_bytes:
        return
    name, remedy = _windows(scene, place, expression)
    if not name:
        return
    size = format_size(request.size_bytes)
    yield Finding(
        id="written_out_view",
        verdict=Verdict.LIKELY,
        title=f"{shown(expression)} makes every window of {name} in memory, where unfold() had"
        f" made a view: {size} at once",
        bytes=request.size_bytes,
        place=place,
        evidence=("windows that overlap have the same entries many times",),
        fix=f"{remedy} (up to {size} less)",
    )


def _windows(scene: Scene, place: Place, expression: str) -> tuple[str, str]:
    """The operand that the nearest line above that assigns it made of windows, and how to compute without them; "" and
    "" without one.
    """
    assigned: set[str] = set()
    for text in scene.source_above(place):
        if text.startswith(("def ", "async def ", "class ")):
            break
        windows = _WINDOWS.match(text)
        name = "" if windows is None else windows["name"]
        if name and name not in assigned:
            if re.search(rf"\b{name}\b\)*\s*[-+*/]", expression):
                return name, _AS_ARITHMETIC
            if _is_sum_over_windows(expression, name) and _do_overlap(text):
                return name, _AS_CONVOLUTION
        assigned.update(_ASSIGNED.findall(text))
    return "", ""


def _do_overlap(text: str) -> bool:
    """Whether windows have entries in common, as far as their size and step say."""
    steps = _STEP.search(text)
    return steps is None or steps["size"].strip() != steps["step"].strip()


def _is_sum_over_windows(expression: str, name: str) -> bool:
    """Whether an einsum adds up over the entries of windows, its last index, and makes nothing that they have not."""
    value = value_of(expression)
    for product in () if value is None else within(value):
        letters = parts_of(equation_of(product))
        if letters is None:
            continue
        *factors, output = letters
        for windows, factor in zip(factors, operands(product)[1:], strict=False):
            if ast.unparse(without_views(factor)) == name:
                return windows[-1] not in output and set(output) <= set(windows)
    return False
