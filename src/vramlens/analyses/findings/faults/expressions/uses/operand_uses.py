"""What the expression that failed makes more of than may be needed, by what it is given: a row that is the same for
all, or flags that are only counted.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from vramlens.analyses.attribution.named_shapes import Shape
from vramlens.analyses.findings.faults.expressions.expression_parts import (
    argument,
    assigned_name,
    is_constant,
    operands,
    same_text,
    value_of,
    within,
    without_views,
)
from vramlens.analyses.findings.faults.expressions.uses.expression_uses import (
    ANY_CALL,
    ExpressionUse,
)
from vramlens.analyses.scene import Scene
from vramlens.ground.source_code import called
from vramlens.units import MIB

_EXPANDS = frozenset({"expand", "expand_as", "broadcast_to"})
_DISTRIBUTIONS = frozenset({"Categorical", "OneHotCategorical"})
_BY_ROW = _DISTRIBUTIONS.union(
    {"multinomial", "sort", "argsort", "topk", "softmax", "log_softmax", "normalize"},
    {"cumsum", "cumprod", "logcumsumexp"},
)
"""What computes each row by itself, and of equal rows the same (or draws from the same)."""
_INPUTS = ("input", "probs", "logits")
_ADDS_UP = frozenset({"sum", "nansum", "prod", "count_nonzero"})
"""Of flags and of whole numbers in 64 bits: ATen converts all of them first (ReduceOps.cpp, make_reduction)."""
_PLAIN_SUMS = frozenset({"sum", "count_nonzero", "mean"})
_AVERAGES = frozenset({"mean", "nanmean"})
_CONVERTS = frozenset({"float", "double", "half", "bfloat16", "long", "int", "to", "type"})
_MAKES_FLAGS = frozenset({"eq", "ne", "gt", "lt", "ge", "le", "isnan", "isinf", "isfinite", "isin"})
_FLAGS = ast.BitAnd, ast.BitOr, ast.BitXor
_FLAGS_IN_NAME = re.compile(
    r"\bbool\[(?P<sizes>\d{1,12}(?:, ?\d{1,12}){0,15})\]\)?(?: tensor| slice)?$"
)
_WIDTHS = (8, 4)
"""Bytes of the types in which numbers are added up."""
_PART_BYTES = 256 * MIB
_USUAL_PART = 256
_LONGEST_ROW = 60
"""Letters of what advice repeats of a program."""


def use_of_equal_rows(scene: Scene) -> ExpressionUse | None:
    """What a call makes of rows that expand() repeats, where one of them is enough; None where none is so."""
    expression = value_of(scene.ending_expression)
    if expression is None or called(expression) not in _BY_ROW:
        return None
    rows = _rows_of(expression)
    expanded = None if rows is None else _expanded(scene, rows)
    if expanded is None:
        return None
    return ExpressionUse(
        ANY_CALL,
        "computes the same row again and again, and copies it each time, where expand() had made a"
        " view",
        _of_one_row(expression, expanded),
    )


def _rows_of(call: ast.expr) -> ast.expr | None:
    """What a call is given first."""
    of_module = isinstance(call, ast.Call) and called(call) in _DISTRIBUTIONS
    positional = call.args if of_module else operands(call)  # type: ignore[attr-defined]
    named = (argument(call, name) for name in _INPUTS)
    return next((node for node in (*positional, *named) if node is not None), None)


def _expanded(scene: Scene, rows: ast.expr) -> ast.expr | None:
    """The call of expand() that made rows: it stands among the arguments, or in the nearest line above that assigns
    them; None where another does.
    """
    if called(rows) in _EXPANDS:
        return rows
    if not isinstance(rows, ast.Name):
        return None
    place = scene.failed_place
    for text in () if place is None else scene.source_above(place):
        if assigned_name(text) == rows.id:
            maker = value_of(text)
            return maker if maker is not None and called(maker) in _EXPANDS else None
        if re.search(rf"\b{rows.id}\b[^=(]*\s[-+*/]?=(?!=)", text) or text.startswith("def "):
            return None  # changed in place, or another function's
    return None


def _of_one_row(call: ast.expr, expanded: ast.expr) -> str:
    """What to compute of the one row instead."""
    row, count = _row_and_count(expanded)
    function = called(call)
    if function == "multinomial":
        return _draws(call, row, count)
    if function in _DISTRIBUTIONS:
        return f"make the distribution of the one row, {row}, and draw as many from it: sample(({count}, k))"
    return f"call {function} on the one row, {row}, and expand() its result: that of every row is the same"


def _draws(call: ast.expr, row: str, count: str) -> str:
    """How to draw from one row what was drawn from equal ones."""
    numbers = [*operands(call)[1:], *filter(None, [argument(call, "num_samples")])]
    drawn = _short(numbers[0], "k") if numbers else "k"
    again = argument(call, "replacement") or (numbers[1] if len(numbers) > 1 else None)
    if isinstance(again, ast.Constant) and again.value is True:
        return (
            "every row is the same one: draw all from it, "
            f"torch.multinomial({row}, {count} * {drawn}, replacement=True).view({count}, {drawn})"
        )
    return (
        "it copies all rows that it draws from: draw for a part of them at a time,"
        f" torch.cat([torch.multinomial(part, {drawn}) for part in rows.split(64)])"
    )


def _row_and_count(expanded: ast.expr) -> tuple[str, str]:
    """The row that expand() repeats and how often, as the program has them; ``row`` and ``n`` where that is long."""
    parts = operands(expanded)
    row = _without_axis(parts[0]) if parts else None
    counts = parts[1:2] if called(expanded) == "expand" else []
    return _short(row, "row"), _short(counts[0] if counts else None, "n")


def _without_axis(row: ast.expr) -> ast.expr:
    """A row before it got an axis to be expanded along."""
    if called(row) == "unsqueeze" and operands(row):
        return operands(row)[0]
    if isinstance(row, ast.Subscript) and "None" in ast.unparse(row.slice):
        return row.value
    return row


def _short(node: ast.expr | None, name: str) -> str:
    """An expression's text, or a name for it where it is long or stands for several."""
    if node is None or isinstance(node, ast.Tuple | ast.List | ast.Starred):
        return name
    text = ast.unparse(node)
    if len(text) > _LONGEST_ROW:
        return name
    return (
        text
        if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Constant)
        else f"({text})"
    )


@dataclass(frozen=True, slots=True)
class _Sum:
    """A call that adds up numbers.

    Attributes:
        call: all of it.
        counts: the numbers, without a view of them.
        flags: what they are converted from; the numbers themselves where they are not.
    """

    call: ast.expr
    counts: ast.expr
    flags: ast.expr

    @property
    def dimensions(self) -> list[ast.expr]:
        """What it adds up over, as the program has it."""
        return [*operands(self.call)[1:], *filter(None, [argument(self.call, "dim")])]

    @property
    def keeps_dimensions(self) -> bool:
        """Whether its result has as many as its input, as ``keepdim`` says."""
        return argument(self.call, "keepdim") is not None

    def is_of(self, expression: ast.expr) -> bool:
        """Whether an expression is this sum, or what is added up, before or after it is converted."""
        return any(same_text(expression, part) for part in (self.call, self.counts, self.flags))


def use_of_sum(scene: Scene, *, of_flags: bool) -> ExpressionUse | None:
    """What adding up narrow numbers makes whole before it does; None where it adds up others.

    Args:
        of_flags: whether sums are meant that count true ones, by their text, or those of other numbers.
    """
    expression, request = value_of(scene.ending_expression), scene.ending_request
    if expression is None:
        return None
    statement = value_of(scene.source_of(scene.failed_place))
    total = next(
        (total for total in _sums(statement or expression) if total.is_of(expression)), None
    )
    if total is None or _are_flags(total.flags) != of_flags:
        return None
    shape = _narrow_shape(scene, request.size_bytes)
    rows = _rows_of_part(shape, request.size_bytes)
    if same_text(expression, total.call):
        if not _converts(total, shape):
            return None
        width = 8 if shape is None else request.size_bytes // (shape.bytes // shape.item_bytes)
        of_tensor = "" if shape is None else f" of {shape}"
        reading = f"converts all that it adds up first, to {width} bytes for each number{of_tensor}"
    elif not _are_flags(total.flags):
        return None
    else:
        reading = "is made whole only to be added up"
    return ExpressionUse(
        ANY_CALL, reading, f"{_in_narrow_type(total, shape)}{_in_parts(total, rows)}"
    )


def _rows_of_part(shape: Shape | None, request_bytes: int) -> int:
    """Of how many rows a wide copy is small, a power of two."""
    if shape is None:
        return _USUAL_PART
    rows = max(_PART_BYTES * shape.sizes[0] // request_bytes, 1)
    return 1 << (rows.bit_length() - 1)


def _sums(node: ast.expr) -> Iterator[_Sum]:
    """Yields the calls in an expression that add up numbers."""
    for part in within(node):
        is_method = isinstance(part, ast.Call) and isinstance(
            part.func, ast.Attribute
        )  # not Python's
        if is_method and called(part) in _ADDS_UP | _AVERAGES:
            numbers = [*operands(part), *filter(None, [argument(part, "input")])]
            if numbers:
                counts = without_views(numbers[0])
                yield _Sum(part, counts, _converted(counts))


def _converted(node: ast.expr) -> ast.expr:
    """What is converted to another type; the expression itself where it is not."""
    return operands(node)[0] if called(node) in _CONVERTS and operands(node) else node


def _are_flags(node: ast.expr) -> bool:
    """Whether an expression gives true or false for each entry, by its text."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, _FLAGS):
        return _are_flags(node.left) or _are_flags(node.right)
    is_inverted = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert)
    return isinstance(node, ast.Compare) or is_inverted or called(node) in _MAKES_FLAGS


def _narrow_shape(scene: Scene, request_bytes: int) -> Shape | None:
    """The tensor in use of whose numbers a request is a wide copy; None without one."""
    shapes = (*scene.advice_shapes.values(), *_shapes_of_flags(scene))
    narrow = (
        shape
        for shape in shapes
        for width in _WIDTHS
        if shape.item_bytes < width
        and shape.sizes
        and request_bytes * shape.item_bytes == shape.bytes * width
    )
    return min(narrow, key=lambda shape: (shape.item_bytes, shape.type), default=None)


def _shapes_of_flags(scene: Scene) -> Iterator[Shape]:
    """Yields the shapes of what holds true or false, which no other rule asks for."""
    names = scene.view.names
    for row in scene.advice_rows.tolist():
        match = _FLAGS_IN_NAME.search(names.shape(row) or names.name(row))
        if match is not None:
            yield Shape(
                "bool", tuple(int(size) for size in match["sizes"].split(",") if size.strip())
            )


def _converts(total: _Sum, shape: Shape | None) -> bool:
    """Whether a sum makes a wide copy of what it is given: of flags always, of other numbers where a wider type is
    named, or they are whole numbers.

    Args:
        shape: of a narrow tensor in use that the request would be a wide copy of; None without one.
    """
    if total.flags is not total.counts:
        return False
    if argument(total.call, "dtype") is not None:
        return shape is not None or _are_flags(total.flags)
    if called(total.call) in _AVERAGES:
        return False
    is_whole = shape is not None and (shape.is_integer or shape.type == "bool")
    return is_whole or _are_flags(total.flags)


def _in_narrow_type(total: _Sum, shape: Shape | None) -> str:
    """How to add up whole numbers without converting them, with the alternative to come; "" of others."""
    if shape is None or not shape.is_integer or _are_flags(total.flags):
        return ""
    if called(total.call) != "sum" or argument(total.call, "dtype") is not None:
        return ""
    if total.keeps_dimensions:
        return ""
    arguments = ", ".join([*map(ast.unparse, total.dimensions), f"dtype=torch.{shape.type}"])
    return f"where the sums fit into its type, convert nothing: {called(total.call)}({arguments}); else "


def _in_parts(total: _Sum, rows: int) -> str:
    """How to add up a part of the rows at a time."""
    parts = _sum_of_parts(total, rows)
    how = (
        f": {parts}"
        if parts
        else f", and make what is added up for that part alone (x.split({rows}) gives the parts)"
    )
    divided = "; then divide by their number" if called(total.call) in _AVERAGES else ""
    return (
        f"add up a part of the rows at a time{how}{divided}; sum(dtype=torch.int32) and"
        " torch.count_nonzero make a wide copy of all, too"
    )


def _sum_of_parts(total: _Sum, rows: int) -> str:
    """The sums of parts of a tensor, as a program would have them; "" where two tensors make what is added up, or it is
    added up over several dimensions, or not known which.
    """
    flags = total.flags
    if called(total.call) not in _PLAIN_SUMS or total.keeps_dimensions:
        return ""
    part, source = "part", flags
    if isinstance(flags, ast.Compare) and all(map(is_constant, flags.comparators)):
        compared = ast.Compare(ast.Name(part), flags.ops, flags.comparators)
        part, source = f"({ast.unparse(compared)})", flags.left
    if not isinstance(source, ast.Name | ast.Attribute):
        return ""
    dimension = ast.unparse(total.dimensions[0]) if total.dimensions else ""
    if dimension and not dimension.isdigit() and dimension != "-1":
        return ""
    along = f"dim={dimension}" if dimension else ""
    term = f"{part}.sum({along}) for part in {ast.unparse(source)}.split({rows})"
    return f"torch.cat([{term}])" if dimension not in ("", "0") else f"sum({term})"
