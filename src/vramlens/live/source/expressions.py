"""Expressions of the user's source, read: which name they store under, with which keys, and what
they mention.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import chain

from vramlens.ground.source_code import last_name

_OWN_NAMESPACES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_EMPTY_MAKERS = ("list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter")


def nodes_in(expressions: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yields every node of some expressions."""
    return chain.from_iterable(map(ast.walk, expressions))


def names_in(expression: ast.AST) -> Iterator[tuple[str, str]]:
    """Every name that an expression reads, as (base, last name): ``("self", "history")``, ``("",
    "x")``.
    """
    for node in ast.walk(expression):
        if isinstance(node, ast.Name):
            yield "", node.id
        elif isinstance(node, ast.Attribute):
            yield text_of(node.value), node.attr


def names_read(expression: ast.AST) -> set[str]:
    """The plain names in an expression, and the names of attributes, without what they are of."""
    nodes = list(ast.walk(expression))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def is_call_of(node: ast.AST, function: str) -> bool:
    """Whether a node calls a function by its plain name."""
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function
    )


def has_length_of(expressions: Iterable[ast.AST], text: str) -> bool:
    """Whether ``len(x)`` of an expression, given as source, stands in any of some others."""
    calls = (node for node in nodes_in(expressions) if is_call_of(node, "len"))
    return any(text in map(text_of, call.args) for call in calls if isinstance(call, ast.Call))


def arguments_of(call: ast.Call) -> tuple[ast.expr, ...]:
    """All arguments of a call, keywords last."""
    return (*call.args, *(keyword.value for keyword in call.keywords))


def receiver_of(expression: ast.expr) -> tuple[str, str, ast.expr | None] | None:
    """The last name of what is stored to, what it is an attribute of, and the key: of
    ``self.a[k]``: a, self, k.

    What a function gives out is called by its name: ``log()`` of ``self.log().append(x)``.
    """
    key: ast.expr | None = None
    while True:
        outer, its_key = _container_of(expression)
        if outer is None:
            break
        key, expression = key or its_key, outer
    match expression:
        case ast.Name():
            return expression.id, "", key
        case ast.Attribute():
            return expression.attr, text_of(expression.value), key
        case ast.Call(func=ast.Attribute(attr=method, value=owner)):
            return f"{method}()", text_of(owner), key
        case ast.Call(func=ast.Name(id="super")):
            return "super()", "", key
        case ast.Call(func=ast.Name(id=function)):
            return f"{function}()", "", key
    return None


def _container_of(expression: ast.expr) -> tuple[ast.expr | None, ast.expr | None]:
    """What an expression is a part of, and under which key; None where it is a name by itself."""
    match expression:
        case ast.Subscript(value=ast.Attribute(attr="loc" | "iloc" | "at" | "iat", value=frame)):
            return frame, expression.slice  # rows of a data frame
        case ast.Subscript():
            return expression.value, expression.slice
        case ast.Call(func=ast.Attribute(attr="setdefault" | "get" | "__getitem__", value=table)):
            key = expression.args[0] if expression.args else None
            return table, key
        case ast.Starred() | ast.Attribute(attr="__dict__"):
            return expression.value, None
    return None, None


def keys_of(expression: ast.expr) -> tuple[ast.expr, ...]:
    """The keys on the way to what is stored to, outermost first."""
    keys: list[ast.expr] = []
    while True:
        match expression:
            case ast.Subscript(value=table, slice=key):
                pass
            case ast.Call(func=ast.Attribute(value=table), args=[key, *_]):
                pass
            case _:
                return tuple(reversed(keys))
        keys.append(key)
        expression = table


def constant_key(key: ast.expr | None) -> str | None:
    """A key as the links of a chain spell it (``'train'``); None where it is not a constant."""
    return repr(key.value) if isinstance(key, ast.Constant) else None


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
    names: list[str] = []
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            elsewhere.update(node.names)
        names += _names_bound_by(node)
        if not isinstance(node, _OWN_NAMESPACES):
            waiting.extend(ast.iter_child_nodes(node))
    return (name for name in names if name not in elsewhere)


def _names_bound_by(node: ast.AST) -> list[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return [name]
        case ast.Import() | ast.ImportFrom():
            return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
        case ast.ExceptHandler(name=str(name)):
            return [name]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
    return []


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
    """``x = x[-100:]``; ``x = x[::2] + [newest]``, which thins it out."""
    if not isinstance(value, ast.BinOp):
        return _own_slice(value, name, base) is not None
    parts = (_own_slice(part, name, base) for part in _summands(value))
    slices = [part for part in parts if part is not None]
    return len(slices) == 1 and slices[0].step is not None


def _summands(value: ast.expr) -> Iterator[ast.expr]:
    """Yields what a sum is made of."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        yield from _summands(value.left)
        yield from _summands(value.right)
    else:
        yield value


def _own_slice(value: ast.expr | None, name: str, base: str) -> ast.Slice | None:
    """The slice of ``x[-100:]``; None of anything else."""
    if not (isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice)):
        return None
    receiver = receiver_of(value.value)
    return value.slice if receiver is not None and receiver[:2] == (name, base) else None


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
    return any(_gives(argument, function, line) for argument in arguments_of(call))


def is_made_by(call: ast.Call, maker: str) -> bool:
    """Whether a call is given what a function returns: ``register(make(x))``."""
    arguments = arguments_of(call)
    return any(isinstance(part, ast.Call) and last_name(part.func) == maker for part in arguments)


def _gives(argument: ast.expr, function: str, line: int | None) -> bool:
    if last_name(argument) == function:
        return True
    if isinstance(argument, ast.Lambda):
        return function == "<lambda>" and argument.lineno == line
    inside: ast.expr | None = argument
    while isinstance(inside, ast.Call):  # partial(f, x), f(x) of a coroutine
        if function in map(last_name, (inside.func, *inside.args)):
            return True
        inside = inside.args[0] if inside.args else None
    return False
