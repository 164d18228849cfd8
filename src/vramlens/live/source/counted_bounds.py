"""Bounds by what the program counts beside a store: the bytes in it, the room that is left.

``while self.bytes > self.limit: self.entries.popitem()`` bounds ``entries`` where ``bytes`` goes up
with each entry. Whether it does is not taken from the source alone: the meter must read what the
condition asks for.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from vramlens.ground.source_code import last_name
from vramlens.live.heap.objects import attributes_of
from vramlens.live.source.bounds import known_number
from vramlens.live.source.expressions import names_read, text_of
from vramlens.live.source.source_stores import Module, Store, read_source
from vramlens.live.source.source_tree import tree_of

_MOST_OVER = 2
"""Times the limit: a meter that reads more was not kept within it."""

_MOST_BYTES = 16
"""For one that is counted: an element has eight at most, and half of the entries may be taken away."""
_LOOPS_OVER = ast.For, ast.AsyncFor, ast.comprehension


@dataclass(frozen=True, slots=True)
class CountedBound:
    """What the program counts, and a condition on it.

    Attributes:
        condition: as it is written.
        to_come: what it may still count.
        reading: what it has counted; 0 where it reads the room that is left.
        is_of_entries: whether it counts entries, each as one.
    """

    condition: str
    to_come: float
    reading: float
    is_of_entries: bool

    def bytes_to_come(self, kept_bytes: int, length: int) -> int:
        """The bytes that may still come, where so many are kept in so many entries."""
        if self.reading:
            return int(self.to_come * kept_bytes / self.reading)
        if self.is_of_entries:
            return int(self.to_come * kept_bytes / max(length, 1))
        return int(self.to_come)

    def is_of(self, kept_bytes: int, length: int) -> bool:
        """Whether it can be what counts a store: its entries, its bytes, or elements of tensors."""
        is_entries = length <= 2 * self.reading <= 4 * length
        return not self.reading or is_entries or kept_bytes <= _MOST_BYTES * self.reading


@dataclass(frozen=True, slots=True)
class _Comparison:
    """``larger > smaller`` holds."""

    larger: ast.expr
    smaller: ast.expr


def meter_of_removal(removal: Store, store: Store, holder: object) -> CountedBound | None:
    """The meter at whose limit entries are taken away; None without one that works.

    Args:
        store: what grows.
        holder: the object whose attribute it is.
    """
    for guard in removal.guards:
        for sides in _comparisons(guard, holds=True, of_all=False):
            meter = _meter(guard, sides.larger, sides.smaller, store, holder)
            if meter is not None and meter.to_come >= 0:
                return meter
    return None


def meter_of_store(store: Store, holder: object) -> CountedBound | None:
    """The meter at whose limit a statement stores no more; None without one that works."""
    for guard in store.guards:
        for sides in _comparisons(guard, holds=True, of_all=True):
            meter = _meter(guard, sides.smaller, sides.larger, store, holder)
            if meter is not None:
                return meter
    return None


def _comparisons(guard: ast.expr, *, holds: bool, of_all: bool) -> Iterator[_Comparison]:
    """The comparisons that are true where a condition holds, or does not.

    Args:
        of_all: only those that must be: those of ``a or b`` need not.
    """
    match guard:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _comparisons(operand, holds=not holds, of_all=of_all)
        case ast.BoolOp(op=operation, values=parts):
            if not of_all or isinstance(operation, ast.And) is holds:
                for part in parts:
                    yield from _comparisons(part, holds=holds, of_all=of_all)
        case ast.Compare(left=left, ops=[ast.Gt() | ast.GtE()], comparators=[right]):
            yield _Comparison(left, right) if holds else _Comparison(right, left)
        case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE()], comparators=[right]):
            yield _Comparison(right, left) if holds else _Comparison(left, right)


def _meter(
    guard: ast.expr, rising: ast.expr, falling: ast.expr, store: Store, holder: object
) -> CountedBound | None:
    """The meter that goes up on one side of a comparison, or down on the other."""
    counting = _counting(rising, ast.Add, store)
    if counting is not None and _turns_a_loop(guard, counting, store):
        return None
    if counting is not None:
        reading, limit = _reading(counting, holder), known_number(falling, store, holder)
        if reading is None or limit is None or not 0 < reading <= _MOST_OVER * limit:
            return None
        return CountedBound(text_of(guard), max(limit - reading, 0), reading, is_of_entries=False)
    counting = _counting(falling, ast.Sub, store)
    room = None if counting is None else _reading(counting, holder)
    if counting is None or room is None:
        return None
    return CountedBound(text_of(guard), room, 0, isinstance(_amount(counting), ast.Constant))


def _counting(side: ast.expr, operation: type[ast.operator], store: Store) -> Store | None:
    """The statement beside a store that counts an attribute in an expression up, or down."""
    module = read_source(store.file)
    if module is None:
        return None
    attributes = (node for node in ast.walk(side) if isinstance(node, ast.Attribute))
    counting = (
        other
        for attribute in attributes
        for other in module.stores.get(attribute.attr, ())
        if other.base == store.base == text_of(attribute.value)
        and _runs_with(other, store)
        and _operator(other) is operation
    )
    return next(counting, None)


def _turns_a_loop(guard: ast.expr, counting: Store, store: Store) -> bool:
    """``while i < n: ...; i += 1``: a loop's own counter, which says how long the program runs. One that something
    else changes, too, counts what is there. So does that of a generator which the program asks for one more now
    and then: the program goes on when it has ended.
    """
    body = store.function.node
    module = read_source(store.file)
    loops = (node for node in (ast.walk(body) if body is not None else ()) if _is_of(node, guard))
    loop = next(loops, None)
    if module is None or loop is None or not isinstance(_amount(counting), ast.Constant):
        return False
    if any(isinstance(node, ast.Yield) for node in ast.walk(loop)) and _is_asked(module, store):
        return False
    changes = (
        other
        for other in module.stores.get(counting.name, ())
        if other.base == counting.base and other is not counting
    )
    return all(change.function.name.endswith("__init__") for change in changes)


def _is_of(node: ast.AST, guard: ast.expr) -> bool:
    return isinstance(node, ast.While) and node.test is guard


def _is_asked(module: Module, store: Store) -> bool:
    """Whether the file calls a store's generator, and no loop runs over it: that would be as long."""
    name = store.function.name.rpartition(".")[2]
    tree = tree_of(module.file)
    if tree is None or name not in module.calls:
        return False
    names = {name, *(other.name for other in _filled_by(module, name))}
    loops = (node for node in ast.walk(tree) if isinstance(node, _LOOPS_OVER))
    return not any(names & names_read(loop.iter) for loop in loops)


def _filled_by(module: Module, function: str) -> Iterator[Store]:
    """Yields the statements that store what a call of a function returns."""
    for other in chain.from_iterable(module.stores.values()):
        if isinstance(other.value, ast.Call) and last_name(other.value.func) == function:
            yield other


def _runs_with(other: Store, store: Store) -> bool:
    """Whether a statement runs whenever another one does."""
    is_beside = other.function is store.function and other.loops == store.loops
    return is_beside and set(other.guards) <= set(store.guards)


def _operator(store: Store) -> type[ast.operator] | None:
    """The operator of ``x += n`` and ``x = x + n``; None of all else."""
    match store.statement, store.value:
        case ast.AugAssign(op=operation), _:
            return type(operation)
        case _, ast.BinOp(op=operation) if store.how == "assign" and store.refers_to_itself:
            return type(operation)
    return None


def _amount(store: Store) -> ast.expr | None:
    """``n`` of ``x -= n`` and ``x = x - n``."""
    match store.how, store.value:
        case "assign", ast.BinOp(right=amount):
            return amount
    return store.value


def _reading(counting: Store, holder: object) -> float | None:
    """What a meter reads now; None where that is no number."""
    if holder is None:
        return None
    value: Any = dict(attributes_of(holder)).get(counting.name)
    return value if type(value) in (int, float) and math.isfinite(value) else None
