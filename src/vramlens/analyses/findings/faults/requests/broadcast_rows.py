"""A column and a row of as many numbers that meet in one operation: broadcasting makes all pairs of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from vramlens.analyses.attribution.named_shapes import Shape
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.requests.costly_expression import shown
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_OPERAND = r"[\w.]+(?:\[[\w'\"]+\])?"
_ROW_BY_ROW = re.compile(
    rf"^\(*{_OPERAND}\)*\s*(?:[-+*/]|[=<>!]=|[<>])\s*\(*{_OPERAND}\)*(?:\s*\*\*\s*2)?$"
    rf"|(?:\w*[Ll]oss\w*|criterion|torch\.(?:sub|add|mul|div|where|eq))\({_OPERAND},\s*{_OPERAND}"
)
"""Arithmetic between two plain operands, and losses: what is mostly meant row by row. A kernel, a product and an
axis that is added make pairs because they want them.
"""
_FEWEST_ROWS = 1024
"""Fewer make pairs that are as large as many other things."""


def broadcast_rows(scene: Scene) -> Iterator[Finding]:
    """The failed request, if it is as large as all pairs of a column's and a vector's numbers, in an expression
    that is mostly meant row by row.
    """
    request, expression = scene.ending_request, scene.ending_expression
    if request is None or not _ROW_BY_ROW.search(expression):
        return
    column = _column(set(scene.advice_shapes.values()), request.size_bytes)
    if column is None:
        return
    rows = column.sizes[0]
    one_shape_bytes = request.size_bytes // rows
    yield Finding(
        id="broadcast_rows",
        verdict=Verdict.LIKELY,
        title=f"{shown(expression)} broadcasts {column} with [{rows}] to {rows:,} x {rows:,} numbers,"
        f" {format_size(request.size_bytes)}",
        bytes=request.size_bytes - one_shape_bytes,
        place=scene.view.place_of_stack(request.stack),
        evidence=("a size of 1 is repeated for each entry of the other tensor",),
        fix="if the two are meant row by row, give both one shape: squeeze(-1) the column, or unsqueeze(-1) the"
        f" other ({format_size(one_shape_bytes)} then); if all pairs are wanted, compute them in blocks of rows",
    )


def _column(shapes: AbstractSet[Shape], size_bytes: int) -> Shape | None:
    """The [N, 1] tensor beside an [N] one whose pairs take so many bytes; None without."""
    vectors = {shape.sizes[0] for shape in shapes if len(shape.sizes) == 1}
    for shape in shapes:
        rows = shape.sizes[0] if len(shape.sizes) == 2 and shape.sizes[1] == 1 else 0
        is_large = rows >= _FEWEST_ROWS and rows in vectors
        if is_large and size_bytes == rows * rows * shape.item_bytes:
            return shape
    return None
