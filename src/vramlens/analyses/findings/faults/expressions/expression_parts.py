"""The parts of an expression or a statement, by its text: what is called, and what it is given."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from vramlens.ground.source_code import called, parsed

_MODULES = frozenset({"torch", "F", "functional", "np", "linalg", "special", "distributions"})
"""Names before a function that are no operand of it."""
_VIEWS = frozenset(
    {"permute", "transpose", "t", "movedim", "swapaxes", "reshape", "view", "flatten", "unflatten"}
    | {"unsqueeze", "squeeze", "contiguous"}
)
"""Methods that give the same numbers in another order."""
_TURNED = frozenset({"T", "mT", "H", "mH"})
"""Attributes that do."""
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_BY_ENTRY = frozenset(
    {"log", "log1p", "exp", "expm1", "sqrt", "abs", "neg", "square", "sigmoid", "tanh", "float"}
)
"""Methods that give a number for each."""


def value_of(text: str) -> ast.expr | None:
    """What a statement or an expression computes; None where its text is none (it may be cut short)."""
    statement = _statement(text)
    value = getattr(statement, "value", None)
    if not isinstance(value, ast.expr):
        return None
    try:
        ast.unparse(value)
    except RecursionError:  # nested far deeper than a program's line is
        return None
    return value


def assigned_name(text: str) -> str:
    """The one name that a statement assigns; "" where it is no such statement."""
    statement = _statement(text)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return names[0] if len(names) == len(targets) == 1 else ""


def operands(node: ast.expr) -> list[ast.expr]:
    """What a call or an operator is given: of a method, its object first; then the positional arguments."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Call):
        return [*_object(node), *node.args]
    return []


def argument(node: ast.expr, name: str) -> ast.expr | None:
    """A call's argument of that name; None where it has none."""
    keywords = node.keywords if isinstance(node, ast.Call) else []
    return next((keyword.value for keyword in keywords if keyword.arg == name), None)


def equation_of(product: ast.expr) -> str:
    """The equation of an einsum; "" of another product."""
    arguments = product.args if isinstance(product, ast.Call) else []
    equation = arguments[0] if called(product) == "einsum" and arguments else None
    text = equation.value if isinstance(equation, ast.Constant) else None
    return text if isinstance(text, str) else ""


def within(node: ast.expr) -> Iterator[ast.expr]:
    """Yields all expressions in one, itself first."""
    return (part for part in ast.walk(node) if isinstance(part, ast.expr))


def without_views(node: ast.expr) -> ast.expr:
    """What an expression gives in another order: ``x`` of ``x.permute(1, 0).reshape(n, -1)`` and of ``x.T``."""
    while True:
        is_view = called(node) in _VIEWS and _object(node)
        if is_view:
            node = _object(node)[0]
        elif isinstance(node, ast.Attribute) and node.attr in _TURNED:
            node = node.value
        else:
            return node


def is_constant(node: ast.expr) -> bool:
    """Whether an expression is one number: a program's constants are in capitals."""
    if isinstance(node, ast.UnaryOp):
        return is_constant(node.operand)
    is_name = isinstance(node, ast.Name | ast.Attribute)
    is_capital = is_name and ast.unparse(node).rpartition(".")[2].isupper()
    return isinstance(node, ast.Constant) or is_capital


def is_by_entry(node: ast.expr) -> bool:
    """Whether an expression is arithmetic of several plain values, entry by entry: no call but ``x.log()`` and the
    like, no axis that is added, and nothing turned round.
    """
    arithmetic = [part for part in within(node) if isinstance(part, ast.BinOp)]
    is_of_several = any(
        not is_constant(part.left) and not is_constant(part.right) for part in arithmetic
    )
    return is_of_several and _is_plain(node)


def _is_plain(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        is_known = isinstance(node.op, _ARITHMETIC)
        return is_known and _is_plain(node.left) and _is_plain(node.right)
    if isinstance(node, ast.UnaryOp):
        return _is_plain(node.operand)
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Name | ast.Constant) and _is_plain(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr not in _TURNED and _is_plain(node.value)
    if isinstance(node, ast.Call):
        is_alone = called(node) in _BY_ENTRY and not node.args and not node.keywords
        return is_alone and all(map(_is_plain, _object(node)))
    return isinstance(node, ast.Name | ast.Constant)


def same_text(first: ast.expr, second: ast.expr) -> bool:
    """Whether two expressions have one text."""
    return ast.dump(first) == ast.dump(second)


def _object(node: ast.expr) -> list[ast.expr]:
    """What a method is called on; nothing where that is a module."""
    function = node.func if isinstance(node, ast.Call) else None
    if not isinstance(function, ast.Attribute):
        return []
    last_name = ast.unparse(function.value).rpartition(".")[2]
    return [] if last_name in _MODULES else [function.value]


def _statement(text: str) -> ast.stmt | None:
    tree = parsed(text)
    return tree.body[0] if tree is not None and len(tree.body) == 1 else None
