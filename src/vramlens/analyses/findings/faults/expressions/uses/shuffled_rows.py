"""All rows of a data set, copied in another order, where each batch can be picked by it."""

from __future__ import annotations

import ast
import re

from vramlens.analyses.findings.faults.expressions.expression_parts import (
    assigned_name,
    operands,
    value_of,
)
from vramlens.analyses.findings.faults.expressions.uses.expression_uses import (
    ANY_CALL,
    ExpressionUse,
)
from vramlens.analyses.scene import Scene
from vramlens.ground.source_code import called

_LEAVES = re.compile(r"^def |\breturn\b")
_AS_IT_IS = frozenset({"to", "cuda"})
_OF_MODULE = re.compile(r"[/\\]torch[/\\]nn[/\\]modules[/\\]module\.py$")


def use_of_shuffle(scene: Scene) -> ExpressionUse | None:
    """What an index copies that a line above has drawn as an order of all rows, to put the rows in the place of
    what they were; None of another.
    """
    rows = value_of(scene.ending_expression)
    if not isinstance(rows, ast.Subscript) or not isinstance(rows.slice, ast.Name):
        return None
    order = rows.slice.id
    if not _is_permutation(scene, order) or not _is_reordered(scene, ast.unparse(rows.value)):
        return None
    return ExpressionUse(
        ANY_CALL,
        "copies all rows, to put them in another order",
        f"keep the rows as they are, and pick each batch by the order:"
        f" {ast.unparse(rows.value)}[{order}[i : i + batch]]; of views, such as windows that"
        " unfold() gives, the copy writes out every one",
    )


def _is_permutation(scene: Scene, order: str) -> bool:
    """Whether the nearest line above that assigns a name draws an order of all rows, and keeps all of it."""
    place = scene.failed_place
    for text in () if place is None else scene.source_above(place):
        if assigned_name(text) == order:
            value = value_of(text)
            while value is not None and called(value) in _AS_IT_IS:
                value = next(iter(operands(value)), None)
            return value is not None and called(value) == "randperm"
        if _LEAVES.search(text):
            return False
    return False


def _is_reordered(scene: Scene, rows: str) -> bool:
    """Whether the failed line assigns rows to the name that they have, outside of any model."""
    frames = scene.trace.stacks.of(scene.ending_request.stack)
    if any(_OF_MODULE.search(frame.file) for frame in frames):
        return False
    targets = scene.source_of(scene.failed_place).partition("=")[0].split(",")
    return rows in map(str.strip, targets)
