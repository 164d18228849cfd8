"""A tensor with a row for each number up to the largest of some ids, most of which no row goes to."""

from __future__ import annotations

import ast
import re

from vramlens.analyses.findings.faults.expressions.expression_parts import value_of, within
from vramlens.analyses.findings.faults.expressions.uses.expression_uses import (
    ANY_CALL,
    ExpressionUse,
)
from vramlens.analyses.scene import Scene
from vramlens.ground.source_code import called

_LARGEST = r"(?:int\()?(?P<ids>[A-Za-z_][\w.]*)\.max\(\)\)?(?:\.item\(\)\)?)?\s*\+\s*1\b"
_MAKERS = frozenset({"zeros", "new_zeros", "ones", "new_ones", "full", "new_full", "empty"})
_MATRIX = 2
_TIMES = 4
"""As many rows as go in."""


def use_of_largest_number(scene: Scene) -> ExpressionUse | None:
    """What an expression makes a row for each number of, where ids decide how many; None where about as
    many rows go in.
    """
    expression = value_of(scene.ending_expression)
    ids = "" if expression is None else _ids(scene, expression)
    rows, entering_rows = _rows(scene)
    if not ids or rows < _TIMES * entering_rows:
        return None
    return ExpressionUse(
        ANY_CALL,
        f"makes a row for each number up to the largest of {ids}, {rows:,}, where {entering_rows:,}"
        " rows go in",
        f"number the ids of each batch anew: {ids} = torch.unique({ids}, return_inverse=True)[1]"
        " before the largest is taken; then there are as many rows as different ids",
        stays=True,
    )


def _ids(scene: Scene, expression: ast.expr) -> str:
    """The ids whose largest number is the first size that a call in an expression makes; "" without."""
    calls = [node for node in within(expression) if isinstance(node, ast.Call)]
    sizes = [call.args[0] for call in calls if call.args and called(call) in _MAKERS]
    place = scene.failed_place
    for size in sizes:
        text = ast.unparse(size)
        own = re.fullmatch(_LARGEST, text)
        above = () if place is None else scene.source_above(place)
        assigned = (re.match(rf"{re.escape(text)}\s*=\s*{_LARGEST}", line) for line in above)
        match = own or next(filter(None, assigned), None)
        if match is not None:
            return match["ids"]
    return ""


def _rows(scene: Scene) -> tuple[int, int]:
    """How many rows the failed request is of, and of how many the matrix in use with such rows is that has
    fewer; 0 and 1 where there is none.
    """
    size_bytes = scene.ending_request.size_bytes
    matrices = [shape for shape in scene.advice_shapes.values() if len(shape.sizes) == _MATRIX]
    counts = {
        (size_bytes // row_bytes, shape.sizes[0])
        for shape in matrices
        if (row_bytes := shape.sizes[1] * shape.item_bytes) and size_bytes % row_bytes == 0
    }
    smaller = [(rows, entering) for rows, entering in counts if entering < rows]
    return max(smaller, key=lambda count: (count[1], -count[0]), default=(0, 1))
