"""All rows of a data set, copied in another order, where each batch can be picked by it."""

from __future__ import annotations

import ast
import re

from vramlens.analyses.findings.faults.expressions.expression_parts import (
    assigned_name,
    value_of,
    within,
)
from vramlens.analyses.findings.faults.expressions.uses.expression_uses import (
    ANY_CALL,
    ExpressionUse,
)
from vramlens.analyses.scene import Scene
from vramlens.ground.source_code import called

_LEAVES = re.compile(r"^def |\breturn\b")


def use_of_shuffle(scene: Scene) -> ExpressionUse | None:
    """What an index copies that a line above has drawn as an order of all rows; None of another."""
    rows = value_of(scene.ending_expression)
    if not isinstance(rows, ast.Subscript) or not isinstance(rows.slice, ast.Name):
        return None
    order = rows.slice.id
    if not _is_permutation(scene, order):
        return None
    return ExpressionUse(
        ANY_CALL,
        "copies all rows, to put them in another order",
        f"keep the rows as they are, and pick each batch by the order:"
        f" {ast.unparse(rows.value)}[{order}[i : i + batch]]; of views, such as windows that"
        " unfold() gives, the copy writes out every one",
    )


def _is_permutation(scene: Scene, order: str) -> bool:
    """Whether the nearest line above that assigns a name draws an order of all rows."""
    place = scene.failed_place
    for text in () if place is None else scene.source_above(place):
        if assigned_name(text) == order:
            value = value_of(text)
            return value is not None and any(called(part) == "randperm" for part in within(value))
        if _LEAVES.search(text):
            return False
    return False
