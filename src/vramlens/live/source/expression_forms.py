"""Questions to an expression of the user's source, by its form alone."""

from __future__ import annotations

import ast

from vramlens.live.source.expressions import is_call_of

_SMALL_SETS = ("shape", "dtype", "device", "size", "ndim")


def constant_text(expression: ast.expr) -> str:
    """A constant as text; "" for anything else."""
    return str(expression.value) if isinstance(expression, ast.Constant) else ""


def exclude_each_other(first: tuple[ast.expr, ...], second: tuple[ast.expr, ...]) -> bool:
    """Whether one list of conditions holds the opposite of one of the other."""
    return has_opposite(first, second) or has_opposite(second, first)


def has_opposite(guards: tuple[ast.expr, ...], others: tuple[ast.expr, ...]) -> bool:
    """Whether the opposite of one of the conditions is among the others."""
    opposites = {ast.dump(ast.UnaryOp(ast.Not(), guard)) for guard in guards}
    return not opposites.isdisjoint(map(ast.dump, others))


def asks_for_presence(guard: ast.expr) -> bool:
    """``if not hasattr(x, "y")``, ``if x is None``, ``if k not in x``."""
    presence = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
    return any(compares(node, presence) or is_call_of(node, "hasattr") for node in ast.walk(guard))


def compares(node: ast.AST, operators: tuple[type[ast.cmpop], ...]) -> bool:
    """Whether it is a comparison whose first operator is of these kinds."""
    return isinstance(node, ast.Compare) and isinstance(node.ops[0], operators)


def is_of_small_set(node: ast.AST) -> bool:
    """Whether its values are few: a shape, a type, a remainder."""
    if isinstance(node, ast.Attribute):
        return node.attr in _SMALL_SETS
    return is_call_of(node, "type") or is_operation(node, ast.Mod, ast.FloorDiv)


def moves_to_cpu(node: ast.AST) -> bool:
    """``x.cpu()``, ``x.to("cpu")``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr != "to":
        return node.func.attr == "cpu"
    return any(isinstance(part, ast.Constant) and part.value == "cpu" for part in node.args)


def is_operation(node: ast.AST, *operators: type[ast.operator]) -> bool:
    """Whether it is an operation with one of these operators."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, operators)


def modulus_of(expression: ast.expr) -> int | None:
    """The number of ``i % 8``; None of anything else."""
    if not isinstance(expression, ast.BinOp) or not isinstance(expression.op, ast.Mod):
        return None
    number = expression.right.value if isinstance(expression.right, ast.Constant) else None
    return number if type(number) is int and number > 0 else None


def has_remainder(expression: ast.expr) -> bool:
    """Whether a remainder stands in it."""
    return any(is_operation(node, ast.Mod) for node in ast.walk(expression))
