"""Bounds that the source sets to what grows: slices that cut it off, conditions that stop it or
empty it.

A condition is read with the container as long as it can get (``len(self.images)`` is huge) and with
the numbers that are never changed after they were set: ``if self.size and len(self.images) >
self.size`` cannot hold where ``size`` is 0. What cannot be told counts as if it could hold.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vramlens.live.heap.objects import attributes_of
from vramlens.live.source.expressions import is_call_of, nodes_in, receiver_of, text_of
from vramlens.live.source.source_stores import Store, read_source

_HUGE = 10**8  # things: no container is meant to get so long
_UNKNOWN: Any = object()
_KEEPS_FEW = ("nlargest", "nsmallest", "sample", "islice")
_OPERATIONS: Mapping[type[ast.cmpop | ast.operator], Callable[[Any, Any], Any]] = {
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.LShift: operator.lshift,
}  # fmt: skip
_MOST_SHIFTED = 64  # bits: no size has more
_SETUP = ("__init__", "__post_init__", "setup", "<module>")


def cut_off(store: Store) -> str:
    """The slice that keeps what is stored short, ``[-5:]`` of ``x = (x + [new])[-5:]``; empty
    without one.
    """
    if store.value is None or not store.refers_to_itself or store.how != "assign":
        return ""
    mentions = list(_mentions(store.value, store, ""))
    return mentions[0] if mentions and all(mentions) else ""


def _mentions(expression: ast.AST, store: Store, cut: str) -> Iterator[str]:
    """For each time that an expression mentions what is stored to: the slice that it is cut by,
    or empty.
    """
    cut = _cut_by(expression) or cut
    if isinstance(expression, ast.Attribute) and expression.attr == store.name:
        if text_of(expression.value) == store.base:
            yield cut
        return
    if isinstance(expression, ast.Name) and not store.base and expression.id == store.name:
        yield cut
    for part in ast.iter_child_nodes(expression):
        yield from _mentions(part, store, cut)


def _cut_by(expression: ast.AST) -> str:
    """How an expression itself keeps something short; empty where it does not."""
    if isinstance(expression, ast.Subscript) and _is_cut(expression.slice):
        return f"[{', '.join(map(text_of, _parts(expression.slice)))}]"
    if not isinstance(expression, ast.Call):
        return ""
    keeps_few = text_of(expression.func).rpartition(".")[2] in _KEEPS_FEW
    return text_of(expression) if keeps_few else ""


def _is_cut(index: ast.expr) -> bool:
    return any(
        isinstance(part, ast.Slice)
        and not all(_is_nothing(end) for end in (part.lower, part.upper))
        for part in _parts(index)
    )


def _parts(index: ast.expr) -> list[ast.expr]:
    return index.elts if isinstance(index, ast.Tuple) else [index]


def _is_nothing(end: ast.expr | None) -> bool:
    return end is None or (isinstance(end, ast.Constant) and end.value in (None, 0))


def never_holds(guards: tuple[ast.expr, ...], store: Store, holder: object) -> bool:
    """Whether conditions can never hold together, however much is stored.

    Args:
        store: what grows.
        holder: the object whose attribute it is; None where that is not known.
    """
    return any(_reads_false(_value(guard, store, holder)) for guard in guards)


def always_holds(guard: ast.expr, store: Store, holder: object) -> bool:
    """Whether a condition still holds when the container is as long as it can get."""
    return _contrary(_value(guard, store, holder)) is False


def length_limit(guards: tuple[ast.expr, ...], store: Store, holder: object) -> int | None:
    """The length that a condition compares what is stored to with; None where that is not a number
    or not known.
    """
    for node in nodes_in(guards):
        if not isinstance(node, ast.Compare) or len(node.ops) != 1:
            continue
        sides = [_value(side, store, holder) for side in (node.left, node.comparators[0])]
        numbers = [side for side in sides if type(side) is int and side != _HUGE]
        if _HUGE in sides and len(numbers) == 1:
            return int(numbers[0])
    return None


def known_number(expression: ast.expr, store: Store, holder: object) -> float | None:
    """The number that an expression is, if it is known and finite; None otherwise."""
    value = _value(expression, store, holder)
    is_number = type(value) in (int, float) and value is not _HUGE
    return value if is_number and math.isfinite(value) else None


def _reads_false(value: Any) -> bool:
    return _contrary(value) is True


def _contrary(value: Any) -> Any:
    return _UNKNOWN if value is _UNKNOWN else not value


def _value(expression: ast.expr, store: Store, holder: object) -> Any:
    """What an expression is when the container is huge; _UNKNOWN where that cannot be told."""
    match expression:
        case ast.Constant(value=constant):
            return constant
        case ast.Call():
            return _called(expression, store)
        case ast.Attribute():
            return _number(_attribute(expression, store, holder))
        case ast.Subscript(value=ast.Attribute() as table, slice=ast.Constant(value=key)):
            return _number(_entry(_attribute(table, store, holder), key))
        case ast.Name(id=name):
            return _global(name, store)
        case ast.UnaryOp(op=ast.Not()):
            return _contrary(_value(expression.operand, store, holder))
        case ast.BoolOp():
            return _joined(expression, [_value(part, store, holder) for part in expression.values])
        case (
            ast.BinOp(left=first, op=operation, right=second)
            | ast.Compare(left=first, ops=[operation], comparators=[second])
        ):
            return _outcome(operation, [_value(side, store, holder) for side in (first, second)])
    return _UNKNOWN


def _called(call: ast.Call, store: Store) -> Any:
    """``len(x)`` and ``float("inf")``."""
    if is_call_of(call, "len") and len(call.args) == 1:
        receiver = receiver_of(call.args[0])
        if receiver is not None and receiver[0] == store.name:
            return _HUGE
    is_infinite = text_of(call) == "float('inf')"
    return math.inf if is_infinite else _UNKNOWN


def _joined(expression: ast.BoolOp, values: list[Any]) -> Any:
    """``and`` is false with one that is, ``or`` true with one that is, whatever the others are."""
    decides = isinstance(expression.op, ast.Or)
    if any(value is not _UNKNOWN and bool(value) is decides for value in values):
        return decides
    return _UNKNOWN if any(value is _UNKNOWN for value in values) else not decides


def _outcome(operation: ast.operator | ast.cmpop, values: list[Any]) -> Any:
    """What an operation gives; _UNKNOWN where that cannot be told."""
    if isinstance(operation, (ast.Is, ast.IsNot)):
        return _is_none(operation, values)
    compute = _OPERATIONS.get(type(operation))
    if compute is None or any(type(value) not in (int, float, bool) for value in values):
        return _UNKNOWN
    if compute in (operator.eq, operator.ne) and _HUGE in values:
        return _UNKNOWN  # it was so long once, on the way
    if compute is operator.lshift and not _can_be_shifted(*values):
        return _UNKNOWN
    return compute(*values)


def _can_be_shifted(number: Any, bits: Any) -> bool:
    return type(number) is int and type(bits) is int and 0 <= bits <= _MOST_SHIFTED


def _is_none(comparison: ast.Is | ast.IsNot, values: list[Any]) -> Any:
    """``x is None`` and ``x is not None``."""
    if _UNKNOWN in values or None not in values:
        return _UNKNOWN
    is_same = values[0] is values[1]
    return is_same if isinstance(comparison, ast.Is) else not is_same


def _attribute(expression: ast.Attribute, store: Store, holder: object) -> Any:
    """What is under an attribute of the holder that nobody changes after it was set."""
    if holder is None or text_of(expression.value) != store.base:
        return _UNKNOWN
    module = read_source(store.file)
    if module is None or not all(
        other.function.name.rpartition(".")[2] in _SETUP
        for other in module.stores.get(expression.attr, ())
        if other.how in ("assign", "add", "item", "delete") and other.base
    ):
        return _UNKNOWN
    return dict(attributes_of(holder)).get(expression.attr, _UNKNOWN)


def _entry(table: Any, key: object) -> Any:
    """What a dict, list or tuple has under a key: ``self.config["entries"]``, ``self.limits[1]``."""
    if type(table) is dict and type(key) is str:
        return table.get(key, _UNKNOWN)
    if type(table) in (list, tuple) and type(key) is int and -len(table) <= key < len(table):
        return table[key]
    return _UNKNOWN


def _number(value: Any) -> Any:
    return value if type(value) in (int, float, bool, type(None)) else _UNKNOWN


def _global(name: str, store: Store) -> Any:
    """A constant that a module sets once."""
    module = read_source(store.file)
    if module is None or store.function.binds(name).node is not None:
        return _UNKNOWN
    setters = (other for other in module.stores.get(name, ()) if other.how in ("assign", "add"))
    stores = [other for other in setters if not other.base]
    if len(stores) != 1 or stores[0].function.node is not None:
        return _UNKNOWN
    constant = stores[0].value
    return constant.value if isinstance(constant, ast.Constant) else _UNKNOWN
