"""Expressions of the user's source, read: which name they store under, with which keys, and what
they mention.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

_EMPTY_MAKERS = ("list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter")


def names_in(expression: ast.AST) -> Iterator[tuple[str, str]]:
    """Every name that an expression reads, as (base, last name): ``("self", "history")``, ``("",
    "x")``.
    """
    for node in ast.walk(expression):
        if isinstance(node, ast.Name):
            yield "", node.id
        elif isinstance(node, ast.Attribute):
            yield text_of(node.value), node.attr


def receiver_of(expression: ast.expr) -> tuple[str, str, ast.expr | None] | None:
    """The last name of what is stored to, what it is an attribute of, and the key: of
    ``self.a[k]``: a, self, k.

    What a function gives out is called by its name: ``log()`` of ``self.log().append(x)``.
    """
    key: ast.expr | None = None
    while True:
        if isinstance(expression, ast.Subscript):
            key = key or expression.slice
            expression = expression.value
        elif isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
            if expression.func.attr not in ("setdefault", "get", "__getitem__"):
                return f"{expression.func.attr}()", text_of(expression.func.value), key
            key = key or (expression.args[0] if expression.args else None)
            expression = expression.func.value
        elif isinstance(expression, ast.Starred) or (
            isinstance(expression, ast.Attribute) and expression.attr == "__dict__"
        ):
            expression = expression.value
        else:
            break
    if isinstance(expression, ast.Name):
        return expression.id, "", key
    if isinstance(expression, ast.Attribute):
        return expression.attr, text_of(expression.value), key
    if isinstance(expression, ast.Call):
        called = expression.func
        if isinstance(called, ast.Name) and called.id == "super":
            return "super()", "", key
        if isinstance(called, ast.Name):
            return f"{called.id}()", "", key
    return None


def keys_of(expression: ast.expr) -> tuple[str | None, ...]:
    """The keys on the way to what is stored to, outermost first, as source; None for those that
    are no constants.
    """
    found: list[str | None] = []
    while True:
        if isinstance(expression, ast.Subscript):
            key = expression.slice
            found.append(repr(key.value) if isinstance(key, ast.Constant) else None)
            expression = expression.value
        elif (
            isinstance(expression, ast.Call)
            and isinstance(expression.func, ast.Attribute)
            and expression.args
        ):
            key = expression.args[0]
            found.append(repr(key.value) if isinstance(key, ast.Constant) else None)
            expression = expression.func.value
        else:
            return tuple(found[::-1])


def is_empty(value: ast.expr | None) -> bool:
    """Whether an expression makes an empty container, or nothing."""
    if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.Constant):
        return True
    return isinstance(value, ast.Call) and text_of(value.func).rpartition(".")[2] in _EMPTY_MAKERS


def bound_in(body: list[ast.stmt]) -> Iterator[str]:
    """Names that a body binds itself: assigned, imported, defined, caught; without global and
    nonlocal ones.
    """
    elsewhere: set[str] = set()
    found: list[str] = []
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            elsewhere.update(node.names)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.append(node.name)
            continue
        elif isinstance(node, ast.Lambda):
            continue
        elif isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            found.append(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found += [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.append(node.name)
        waiting.extend(ast.iter_child_nodes(node))
    return (name for name in found if name not in elsewhere)


def own_expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """A statement's own expressions, without those of the statements inside."""
    for name, value in ast.iter_fields(statement):
        if name in ("body", "orelse", "finalbody", "handlers", "cases", "decorator_list"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.expr):
                yield part
            elif isinstance(part, ast.withitem):
                yield part.context_expr


def is_own_slice(value: ast.expr | None, name: str, base: str) -> bool:
    """``x = x[-100:]``."""
    if not (isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice)):
        return False
    found = receiver_of(value.value)
    return found is not None and found[:2] == (name, base)


def text_of(expression: ast.expr) -> str:
    """An expression as source."""
    try:
        return ast.unparse(expression)
    except (ValueError, RecursionError):
        return "?"


def hands_over(call: ast.Call, function: str, line: int | None) -> bool:
    """Whether a call is given a function: by its name, inside of ``partial(f, x)``, or a lambda
    of a line.
    """
    for argument in (*call.args, *(one.value for one in call.keywords)):
        inside: ast.expr | None = argument
        if _is_called(argument, function):
            return True
        while isinstance(inside, ast.Call):  # partial(f, x), f(x) of a coroutine
            if _is_called(inside.func, function) or any(
                _is_called(one, function) for one in inside.args
            ):
                return True
            inside = inside.args[0] if inside.args else None
        if isinstance(argument, ast.Lambda) and function == "<lambda>" and argument.lineno == line:
            return True
    return False


def _is_called(expression: ast.expr, name: str) -> bool:
    if isinstance(expression, ast.Name):
        return expression.id == name
    return isinstance(expression, ast.Attribute) and expression.attr == name
