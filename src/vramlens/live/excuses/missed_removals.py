"""Removals that take nothing: ``sessions.pop(key, None)`` with a key that is never there, and
``listeners.remove(partial(...))`` of a partial that was made only now.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain, islice
from types import FunctionType
from typing import Any

from vramlens.live.excuses.container_bounds import Growth
from vramlens.live.excuses.removal_calls import argument_of, calls_of
from vramlens.live.excuses.removals import has_many_entries
from vramlens.live.heap.objects import class_name, dict_items, elements_of, is_kind
from vramlens.live.holder.keeper import Statements
from vramlens.live.source.expressions import last_name, text_of
from vramlens.live.source.source_stores import Store, read_source
from vramlens.live.source.source_tree import tree_of

_MOST_KEYS = 200
"""Whose types are read: of a dict with keys of two types both come among them, and a few thousand
would be read at each report.
"""
_RESULTS = {
    **{name: name for name in ("str", "int", "float", "bool", "bytes", "tuple", "frozenset")},
    "repr": "str",
    "hex": "str",
    "len": "int",
    "hash": "int",
    "id": "int",
    "round": "int",
}
"""The types of what Python's own functions give."""
_NUMBERS = frozenset(("int", "float", "bool", "int64", "float64"))
"""Types whose equal values are one key."""
_TAKES_EQUAL = ("remove", "discard")
"""Methods that take out what equals their argument; ``pop`` does from a dict."""
_TEXT_METHODS = frozenset(("strip", "lower", "upper", "format", "join", "replace", "hexdigest"))


def missed_text(growth: Growth, removal: Store, statements: Statements) -> str:
    """Why a removal takes nothing out, as far as its source and what is kept tell; empty
    elsewhere.
    """
    container = growth.container
    never_there = _never_there(removal, statements) if has_many_entries(growth) else ""
    return (
        key_types(container, removal) or _made_anew(container, removal, statements) or never_there
    )


def key_types(container: object, removal: Store) -> str:
    """``the keys are int, line 54 looks for str``, where no key has the type that a removal asks
    for; empty elsewhere.
    """
    if removal.how == "call" and removal.method != "pop":
        return ""  # popitem(last=False) asks for no key
    kept_types = {class_name(type(key)) for key, _ in islice(dict_items(container), _MOST_KEYS)}
    keys = (removal.key, *removal.arguments[:1])
    asked_type = next((_type_of(key, removal) for key in keys if key is not None), "")
    if (
        not kept_types
        or not asked_type
        or asked_type in kept_types
        or (asked_type in _NUMBERS and kept_types & _NUMBERS)
    ):
        return ""
    kept_words = " and ".join(sorted(kept_types))
    return f"its keys are {kept_words}, and line {removal.line} looks for {asked_type}"


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
        last = guard.end_lineno or guard.lineno
        is_apart = last < removal.line and _asks_whether_in(guard, f"{removal.base}.{removal.name}")
        if is_apart and statements.shows_runs(removal.file, guard.lineno, last):
            return f"line {guard.lineno} asks whether it is there, and it never was"
    return ""


def _asks_whether_in(guard: ast.expr, container: str) -> bool:
    match guard:
        case ast.Compare(ops=[ast.In()], comparators=[asked]):
            return text_of(asked) == container
    return False


def _type_of(key: ast.expr, removal: Store) -> str:
    """The type of an expression by its source; empty where that does not tell."""
    type_of_key = _type_of_value(key)
    if type_of_key:
        return type_of_key
    name = _name_of(key)
    module = read_source(removal.file)
    stores = [] if module is None else module.stores.get(name, [])
    values = [store.value for store in stores if store.how in ("assign", "item")]
    if isinstance(key, ast.Subscript):
        values = _values_under(name, tree_of(removal.file))
    types = {_type_of_value(value) for value in values if value is not None}
    return types.pop() if len(types) == 1 else ""


def _name_of(key: ast.expr) -> str:
    """``oldest`` of ``self.oldest``, the key of ``message["session"]``."""
    match key:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
    return ""


def _values_under(name: str, tree: ast.Module | None) -> list[ast.expr | None]:
    """What dict displays of a file have under a key."""
    nodes = () if tree is None else ast.walk(tree)
    displays = [node for node in nodes if isinstance(node, ast.Dict)]
    pairs = chain.from_iterable(zip(node.keys, node.values, strict=True) for node in displays)
    return [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == name]


def _type_of_value(value: ast.expr) -> str:
    match value:
        case ast.Constant(value=constant):
            return type(constant).__name__
        case ast.JoinedStr():
            return "str"
        case ast.Tuple():
            return "tuple"
        case ast.Call(func=ast.Name(id=function)):
            return _RESULTS.get(function, "")
        case ast.Call(func=ast.Attribute(attr=method)) if method in _TEXT_METHODS:
            return "str"
    return ""
