"""[N, 1] and [N], or [N, 1, ...] and [N, ...], that meet in one operation: broadcasting makes all pairs of them."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

import numpy as np

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.named_shapes import Shape
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.expressions.costly_expression import shown
from vramlens.analyses.findings.faults.expressions.expression_parts import is_by_entry, value_of
from vramlens.analyses.findings.faults.expressions.uses.expression_uses import MUCH
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size

_PICKED = r"\[:,\s*(?!None\b)\w+\]"
"""Of a table, one column: a vector."""
_OPERAND = rf"[\w.]+(?:\[[\w'\"]+\]|{_PICKED})?"
_ROW_BY_ROW = re.compile(
    rf"^\(*{_OPERAND}\)*\s*(?:[-+*/]|[=<>!]=|[<>])\s*\(*{_OPERAND}\)*(?:\s*\*\*\s*2)?$"
    rf"|(?:\w*[Ll]oss\w*|criterion|cosine_similarity|pairwise_distance|torch\.(?:sub|add|mul|div|where|eq))\({_OPERAND},\s*{_OPERAND}"
)
"""Arithmetic between two plain operands, and losses: what is mostly meant row by row. A kernel, a product and an
axis that is added make pairs because they want them.
"""
_PART = rf"(?:[\w.]+\([\w., \[\]'\"]*\)|{_OPERAND})"
"""An operand, or what a model or a method computes."""
_DIFFERENCE = re.compile(
    rf"\((?P<inner>{_PART}\s*-\s*{_PART})\)|^\w+ = (?P<line>{_PART}\s*-\s*{_PART})$"
)
"""In a line: what a mean of squares is computed of, or all of the line."""
_TURNED = re.compile(r"\.(?:T|mT|H|t\(\))(?!\w)")
"""An operand that is turned round makes pairs on purpose."""
_MAKES_AXIS = re.compile(r"\[[^\]]*\bNone\b[^\]]*\]|\.(?:unsqueeze|view|reshape)\(|\bmeshgrid\(")
"""In a line above: what makes a grid on purpose."""
_MEANT_AS_PAIRS = re.compile(
    rf"{_TURNED.pattern}|\.(?:unsqueeze|view|reshape|transpose|permute|expand|repeat)\("
)
_ITEM_BYTES = 4
"""Of the type that most programs compute in."""
_ITEMS, _OTHER_ITEMS = (1, 2, 4, 8), (1, 2, 8)
"""Bytes of a number, in its different types."""
_BOTH = 2
"""Tensors that meet: one with an axis added is the same tensor twice."""
_FEWEST_ROWS, _FEWEST_LONG_ROWS = 1024, 16
"""Fewer make pairs that are as large as many other things: of numbers, and of rows of numbers, which must fit in
each of their sizes.
"""


@after_failure
def broadcast_rows(scene: Scene) -> Iterator[Finding]:
    """The failed request, or what a line made before, if it is as large as all pairs of a column's and a vector's
    numbers, or of the rows of such tables, in an expression that is mostly meant row by row.
    """
    shapes = set(scene.advice_shapes.values())
    for expression, size_bytes, place, made_at in _row_by_row(scene):
        if _has_as_many(scene, size_bytes // _ITEM_BYTES, made_at, _OTHER_ITEMS):
            continue  # an operand has as many numbers, in another type
        column = _column(shapes, size_bytes)
        if column is not None:
            yield _finding(expression, size_bytes, place, column)
            return
        column = _unnamed_column(scene, expression, size_bytes, made_at)
        if column is not None:
            yield _finding(expression, size_bytes, place, column, is_known=False)
            return


def _row_by_row(scene: Scene) -> Iterator[tuple[str, int, Place | None, int]]:
    """Yields expressions that are mostly meant row by row, with the bytes, the line and the event of what they
    make: the one that failed, and those of lines that made a large square matrix.
    """
    request, expression = scene.ending_request, scene.ending_expression
    if _is_row_by_row(scene, expression, scene.failed_place):
        place = scene.view.place_of_stack(request.stack)
        if not _has_older_twin(scene, place, request.size_bytes, request.event):
            yield expression, request.size_bytes, place, request.event
        yield from _first_as_large(scene)
    for row, shape in scene.advice_shapes.items():
        is_square = len(shape.sizes) == 2 and shape.sizes[0] == shape.sizes[1]
        if not is_square or shape.bytes < MUCH * scene.advice_heap.requested_bytes:
            continue
        place = scene.view.place_of_block(row)
        allocations = scene.device.allocations
        made_bytes, born = int(allocations.requested_bytes[row]), int(allocations.born[row])
        if _has_older_twin(scene, place, made_bytes, born):
            continue  # a matrix that is centered
        difference = _DIFFERENCE.search(scene.source_of(place))
        if difference is not None and not _MEANT_AS_PAIRS.search(difference[0]):
            yield difference["inner"] or difference["line"], shape.bytes, place, born


def _is_row_by_row(scene: Scene, expression: str, place: Place | None) -> bool:
    """Whether an expression is mostly meant row by row; other arithmetic is where no line above makes axes."""
    if _ROW_BY_ROW.search(expression):
        return True
    value = value_of(expression)
    if value is None or not is_by_entry(value):
        return False
    return place is None or not any(map(_MAKES_AXIS.search, scene.source_above(place)))


def _first_as_large(scene: Scene) -> Iterator[tuple[str, int, Place | None, int]]:
    """Yields the arithmetic that was the first to make as much as was requested: what followed is as large for
    that.
    """
    allocations, size_bytes = scene.device.allocations, scene.ending_request.size_bytes
    alike = np.flatnonzero(allocations.requested_bytes == size_bytes)
    if not len(alike) or (allocations.born[alike] < 0).any():
        return  # nobody knows what made the first
    first = int(alike[np.argmin(allocations.born[alike])])
    place = scene.view.place_of_block(first)
    born = int(allocations.born[first])
    value = value_of(scene.source_of(place))
    text = "" if value is None else ast.unparse(value)
    is_first = not _has_older_twin(scene, place, size_bytes, born)
    if is_first and _is_row_by_row(scene, text, place):
        yield text, size_bytes, place, born


def _has_older_twin(scene: Scene, place: Place | None, size_bytes: int, event: int) -> bool:
    """Whether something as large, of another line, was in use when a line first made what it made at an event: of
    the pairs of a loop's turn, those of the turn before are still there in the next.
    """
    allocations, view = scene.device.allocations, scene.view
    alike = np.flatnonzero(allocations.requested_bytes == size_bytes)
    frames, frame_of_row = np.unique(view.phases.frame[alike], return_inverse=True)
    is_of_line = np.array([view.place(frame) == place for frame in frames.tolist()], np.bool_)
    is_own = is_of_line[frame_of_row.reshape(-1)]
    born, died = allocations.born[alike], allocations.died[alike]
    first = int(born[is_own & (born >= 0)].min(initial=event))
    return bool((~is_own & (born < first) & (died > first)).any())


def _finding(
    expression: str,
    size_bytes: int,
    place: Place | None,
    column: Shape,
    *,
    is_known: bool = True,
) -> Finding:
    rows, _, *rest = column.sizes
    one_shape_bytes = size_bytes // rows
    all_pairs = " x ".join(f"{size:,}" for size in (rows, rows, *rest))
    result = f"{all_pairs} numbers, {format_size(size_bytes)}"
    pairs = (
        f"broadcasts {column} with {[rows, *rest]} to {result}"
        if is_known
        else f"makes {result}: all pairs of a column [{rows}, 1] and a vector [{rows}]"
    )
    axis, name = (1, f"{list(column.sizes)} tensor") if rest else (-1, "column")
    return Finding(
        id="broadcast_rows",
        verdict=Verdict.LIKELY,
        title=f"{shown(expression)} {pairs}",
        bytes=size_bytes - one_shape_bytes,
        place=place,
        evidence=(
            "a size of 1 is repeated for each entry of the other tensor",
            "where row by row was meant, the result is wrong as well, and that of smaller batches"
            " was",
        ),
        fix=f"if the two are meant row by row, give both one shape: squeeze({axis}) the {name} where it"
        f" is made, or unsqueeze({axis}) the other ({format_size(one_shape_bytes)} then); if all pairs are wanted,"
        " compute them in blocks of rows",
    )


def _column(shapes: AbstractSet[Shape], size_bytes: int) -> Shape | None:
    """The [N, 1] tensor beside an [N] one whose pairs take so many bytes, or the [N, 1, ...] beside an [N, ...]; None
    without.
    """
    all_sizes = {shape.sizes for shape in shapes}
    for shape in shapes:
        rows, *rest = shape.sizes or (0,)
        if not rest or rest[0] != 1 or (rows, *rest[1:]) not in all_sizes:
            continue
        fewest = _FEWEST_LONG_ROWS if math.prod(rest) > 1 else _FEWEST_ROWS
        if rows >= fewest and size_bytes == rows * shape.bytes:
            return shape
    return None


def _unnamed_column(scene: Scene, expression: str, size_bytes: int, made_at: int) -> Shape | None:
    """The [N, 1] tensor whose pairs take so many bytes, where such small ones have no shape in the recording: by
    their bytes, if there are two such, or the other is a column of a table, and nothing that was in use before has as
    many numbers as the pairs.

    Args:
        made_at: the event at which the pairs were requested.
    """
    rows = math.isqrt(size_bytes // _ITEM_BYTES)
    if rows < _FEWEST_ROWS or rows * rows * _ITEM_BYTES != size_bytes or _TURNED.search(expression):
        return None
    allocations, names = scene.device.allocations, scene.view.names
    sizes = allocations.requested_bytes
    # What a call has computed for the expression is gone once the pairs are there.
    alive = np.union1d(scene.advice_rows, allocations.alive_after(made_at - 1))
    if _has_as_many(scene, rows * rows, made_at, _ITEMS):
        return None  # an operand has as many numbers, in this type or another
    of_model = names.of_kind(*(kind for kind in TensorKind if kind != TensorKind.TENSOR))
    vectors = np.setdiff1d(alive[sizes[alive] == rows * _ITEM_BYTES], of_model)
    unknown = [row for row in vectors.tolist() if row not in scene.advice_shapes]
    is_of_table = re.search(_PICKED, expression) is not None
    is_there = len(unknown) >= (1 if is_of_table else _BOTH) or (
        # A vector that is known makes pairs only with a column: what is computed in the expression.
        "(" in expression and any(shape.sizes == (rows,) for shape in scene.advice_shapes.values())
    )
    return Shape("float32", (rows, 1)) if is_there else None


def _has_as_many(scene: Scene, count: int, made_at: int, items: tuple[int, ...]) -> bool:
    """Whether something was in use before an event that has so many numbers, of one of some sizes."""
    allocations, alive = scene.device.allocations, scene.advice_rows
    is_older = allocations.born[alive] < made_at
    older = alive[is_older & (scene.view.categories.category[alive] != Category.WORKSPACE)]
    sizes = [count * item for item in items]
    return bool(np.isin(allocations.requested_bytes[older], sizes).any())
