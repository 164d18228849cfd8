"""A wide copy of a narrow tensor, which an operator makes where its other operand is wide."""

from __future__ import annotations

import ast
import re

from vramlens.analyses.findings.faults.expressions.expression_parts import (
    operands,
    value_of,
    without_views,
)
from vramlens.analyses.findings.faults.expressions.uses.expression_uses import (
    ANY_CALL,
    ExpressionUse,
)
from vramlens.analyses.scene import Scene

_HALF = ("float16", "bfloat16")
_ELEMENTWISE = (ast.Mult, ast.Div, ast.Add, ast.Sub)


def use_of_promotion(scene: Scene) -> ExpressionUse | None:
    """What an operator makes of an operand in 16 bits that is half as large as the failed request; None
    where it has none.
    """
    expression = value_of(scene.ending_expression)
    if not isinstance(expression, ast.BinOp) or not isinstance(expression.op, _ELEMENTWISE):
        return None
    narrow = next((node for node in operands(expression) if _is_narrow(scene, node)), None)
    if narrow is None:
        return None
    text = ast.unparse(narrow)
    return ExpressionUse(
        ANY_CALL,
        f"makes a copy of {text} in float32, the type of the other operand",
        "if a product with a matrix follows, apply the factor to its result instead, which is"
        " smaller: (queries.to(x.dtype) @ x.T) * factor is queries @ (x * factor[:, None]).T; or"
        f" compute a part of the rows at a time; where {text} must be scaled, convert the other"
        " operand to its type first",
    )


def _is_narrow(scene: Scene, operand: ast.expr) -> bool:
    """Whether an operand is a tensor in 16 bits that is half as large as the failed request."""
    own_name = ast.unparse(without_views(operand)).rpartition(".")[2]
    size_bytes = scene.ending_request.size_bytes
    return any(
        shape.type in _HALF
        and 2 * shape.bytes == size_bytes
        and re.search(rf"\b{re.escape(own_name)}$", scene.view.names.name(row))
        for row, shape in scene.advice_shapes.items()
    )
