"""Removals that take nothing: ``sessions.pop(key, None)`` with a key that is never there, and
``listeners.remove(partial(...))`` of a partial that was made only now.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice
from types import FunctionType
from typing import Any

from vramlens.ground.source_code import last_line_of, last_name
from vramlens.live.excuses.container_bounds import Growth
from vramlens.live.excuses.key_types import key_types
from vramlens.live.excuses.numbered_keys import asks_between
from vramlens.live.excuses.removal_calls import argument_of, calls_of
from vramlens.live.excuses.removals import has_many_entries
from vramlens.live.heap.objects import class_name, dict_items, elements_of, is_kind
from vramlens.live.holder.keeper import Statements
from vramlens.live.source.expressions import text_of
from vramlens.live.source.source_stores import Store

_MOST_KEYS = 200
"""Of whose entries the classes are read: a few thousand would be read at each report."""
_TAKES_EQUAL = ("remove", "discard")
"""Methods that take out what equals their argument; ``pop`` does from a dict."""


def missed_text(growth: Growth, removal: Store, statements: Statements) -> str:
    """Why a removal takes nothing out, as far as its source and what is kept tell; empty
    elsewhere.
    """
    container = growth.container
    never_there = _never_there(removal, statements) if has_many_entries(growth) else ""
    store, holder = growth.store, growth.holder
    return (
        key_types(container, removal, holder)
        or ("" if store is None else asks_between(container, removal, store, holder))
        or _made_anew(container, removal, statements)
        or never_there
    )


def _made_anew(container: object, removal: Store, statements: Statements) -> str:
    """``line 98 makes a new partial, which equals no entry``: what compares by identity, and
    is made for the removal only.
    """
    kinds = {type(entry) for entry in islice(_entries_of(container), _MOST_KEYS)}
    if not kinds or not all(map(_compares_by_identity, kinds)):
        return ""
    taken = list(_taken_by(removal, container, statements))
    made_classes = {_class_made_by(value) for value in taken if value is not None}
    if None in taken or made_classes != {class_name(kind) for kind in kinds}:
        return ""
    line = next(value.lineno for value in taken if value is not None)
    return f"line {line} makes a new {made_classes.pop()}, which equals no entry"


def _entries_of(container: object) -> Iterator[Any]:
    """Yields what equality is asked of: the keys of a dict, the elements of anything else."""
    if is_kind(container, dict):
        return (key for key, _ in dict_items(container))
    return iter(elements_of(container) or ())


def _compares_by_identity(kind: type) -> bool:
    return type.__getattribute__(kind, "__eq__") is object.__eq__


def _taken_by(
    removal: Store, container: object, statements: Statements
) -> Iterator[ast.expr | None]:
    """Yields the expressions of what a removal takes out, those of its function's callers where it
    is a parameter; None of what is not known.
    """
    taken = removal.key
    is_of_equal = removal.method in _TAKES_EQUAL
    if is_of_equal or (removal.method == "pop" and is_kind(container, dict)):
        taken = next(iter(removal.arguments), None)
    elif removal.how == "call":
        taken = None
    if isinstance(taken, ast.Name) and taken.id in removal.function.parameters:
        sites = [site for _, site in calls_of(removal, statements)]
        yield from (argument_of(site, removal.function, taken.id) for site in sites)
    else:
        yield taken


def _class_made_by(value: ast.expr) -> str:
    """The class of what an expression makes anew, as far as its text tells."""
    if isinstance(value, ast.Lambda):
        return class_name(FunctionType)
    return last_name(value.func) if isinstance(value, ast.Call) else ""


def _never_there(removal: Store, statements: Statements) -> str:
    """``line 30 asks whether it is there, and it never was``: of ``if x in self.kept:
    self.kept.remove(x)`` the interpreter shows runs of the first line only.
    """
    if removal.how != "call" or not removal.base or statements.has_run_often(removal):
        return ""
    if statements.was_seen_running(removal):
        return ""
    for guard in removal.guards:
        last = last_line_of(guard)
        is_apart = last < removal.line and _asks_whether_in(guard, f"{removal.base}.{removal.name}")
        if is_apart and statements.shows_runs(removal.file, guard.lineno, last):
            return f"line {guard.lineno} asks whether it is there, and it never was"
    return ""


def _asks_whether_in(guard: ast.expr, container: str) -> bool:
    match guard:
        case (
            ast.Compare(ops=[ast.In()], comparators=[asked])
            | ast.UnaryOp(op=ast.Not(), operand=ast.Compare(ops=[ast.NotIn()], comparators=[asked]))
        ):
            return text_of(asked) == container
    return False
