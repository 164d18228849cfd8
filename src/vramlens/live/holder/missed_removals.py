"""Removals that run and take nothing: ``sessions.pop(key, None)`` with a key that is never there."""

from __future__ import annotations

import ast
from itertools import chain, islice

from vramlens.live.heap.objects import class_name, dict_items
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
_TEXT_METHODS = frozenset(("strip", "lower", "upper", "format", "join", "replace", "hexdigest"))


def key_types(container: object, removal: Store) -> str:
    """``the keys are int, line 54 looks for str``, where no key has the type that a removal asks
    for; empty elsewhere.
    """
    if removal.how == "call" and removal.method != "pop":
        return ""  # popitem(last=False) asks for no key
    kept = {class_name(type(key)) for key, _ in islice(dict_items(container), _MOST_KEYS)}
    keys = (removal.key, *removal.arguments[:1])
    asked = next((_type_of(key, removal) for key in keys if key is not None), "")
    if not kept or not asked or asked in kept or (asked in _NUMBERS and kept & _NUMBERS):
        return ""
    return f"its keys are {' and '.join(sorted(kept))}, and line {removal.line} looks for {asked}"


def _type_of(key: ast.expr, removal: Store) -> str:
    """The type of an expression by its source; empty where that does not tell."""
    own = _type_of_value(key)
    if own:
        return own
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
