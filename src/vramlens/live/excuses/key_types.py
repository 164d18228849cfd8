"""The types of keys: those that a container has, and that which a removal asks for.

What a removal asks for is told by its source, or by where the source takes it from: after ``oldest,
_ = self.recency.popitem()`` it has the type of the keys that ``self.recency`` has now.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain, islice

from vramlens.live.heap.objects import (
    attributes_of,
    class_name,
    class_order,
    dict_items,
    elements_of,
    is_kind,
)
from vramlens.live.source.expressions import text_of
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
_PLAIN_TYPES = (str, bytes, int, float, bool, tuple, frozenset)
"""Types that are unequal to all others, but for numbers; a class may be written to equal anything."""
_TEXT_METHODS = frozenset(("strip", "lower", "upper", "format", "join", "replace", "hexdigest"))
_SAME_ENTRIES = ("list", "tuple", "set", "sorted", "reversed", "iter")
"""Python's own functions that give the entries of what they get."""


def key_types(container: object, removal: Store, holder: object = None) -> str:
    """``the keys are int, line 54 looks for str``, where no key has the type that a removal asks
    for; empty elsewhere.

    Args:
        holder: the object whose attribute the container is; None where it is none.
    """
    if removal.how == "call" and removal.method != "pop":
        return ""  # popitem(last=False) asks for no key
    kept_classes = {type(key) for key, _ in islice(dict_items(container), _MOST_KEYS)}
    kept_types = set(map(class_name, kept_classes))
    with_bases = set(map(class_name, chain.from_iterable(map(class_order, kept_classes))))
    keys = (removal.key, *removal.arguments[:1])
    asked_type = next((_type_of(key, removal, holder) for key in keys if key is not None), "")
    if (
        not kept_types
        or not asked_type
        or asked_type in with_bases
        or (asked_type in _NUMBERS and kept_types & _NUMBERS)
    ):
        return ""
    kept_words = " and ".join(sorted(kept_types))
    return f"its keys are {kept_words}, and line {removal.line} looks for {asked_type}"


def _type_of(key: ast.expr, removal: Store, holder: object) -> str:
    """The type of an expression; empty where nothing tells it."""
    type_of_key = _type_of_value(key) or _type_of_entries(_taken_from(key), removal, holder)
    if type_of_key:
        return type_of_key
    types = set(_types_under_name(key, removal, holder))
    return types.pop() if len(types) == 1 else ""


def _types_under_name(key: ast.expr, removal: Store, holder: object) -> Iterator[str]:
    """Yields the types of what the file stores under the name of a key; empty for unknown ones."""
    name = _name_of(key)
    if isinstance(key, ast.Subscript):
        yield from map(_type_of_value, _values_under(name, tree_of(removal.file)))
        return
    module = read_source(removal.file)
    for store in () if module is None else module.stores.get(name, ()):
        if store.how not in ("assign", "item"):
            continue
        is_beside = store.function is removal.function
        source = _source_of(store) if is_beside else None
        type_of_entries = _type_of_entries(source, removal, holder)
        if type_of_entries or store.value is not None:
            yield type_of_entries or _type_of_value(store.value)


def _name_of(key: ast.expr) -> str:
    """``oldest`` of ``self.oldest``, the key of ``message["session"]``."""
    match key:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
    return ""


def _values_under(name: str, tree: ast.Module | None) -> list[ast.expr]:
    """What dict displays of a file have under a key."""
    nodes = () if tree is None else ast.walk(tree)
    displays = [node for node in nodes if isinstance(node, ast.Dict)]
    pairs = chain.from_iterable(zip(node.keys, node.values, strict=True) for node in displays)
    return [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == name]


def _type_of_value(value: ast.expr | None) -> str:
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


def _source_of(store: Store) -> tuple[ast.expr, bool] | None:
    """The container whose keys or elements a statement stores under a name, as of ``_taken_from``."""
    match store.statement:
        case ast.Assign(
            targets=[ast.Tuple(elts=[ast.Name(id=first), *_])],
            value=ast.Call(func=ast.Attribute(attr="popitem", value=table)),
        ) if first == store.name:
            return table, True
        case ast.Assign(targets=[ast.Name()], value=value):
            return _taken_from(value)
        case ast.For(target=ast.Name(), iter=entries):
            return _iterated(entries), True
    return None


def _taken_from(value: ast.expr) -> tuple[ast.expr, bool] | None:
    """The container that an expression takes one entry from, and whether that is a key where it is
    a dict; None where it takes none.
    """
    match value:
        case ast.Call(func=ast.Attribute(attr="pop" | "popleft", value=table)):
            return table, False
        case ast.Call(func=ast.Name(id="next"), args=[ast.Call() as iterator, *_]):
            return _iterated(iterator), True
        case ast.Subscript(value=table, slice=ast.Constant() | ast.UnaryOp()):
            return table, False
    return None


def _iterated(entries: ast.expr) -> ast.expr:
    """``self.order`` of ``list(self.order)`` and ``self.order.keys()``."""
    match entries:
        case ast.Call(func=ast.Name(id=function), args=[table]) if function in _SAME_ENTRIES:
            return _iterated(table)
        case ast.Call(func=ast.Attribute(attr="keys" | "copy", value=table)):
            return _iterated(table)
    return entries


def _type_of_entries(source: tuple[ast.expr, bool] | None, removal: Store, holder: object) -> str:
    """The one plain type of what a container beside the one that grows has now; empty where it has
    several, or is not known.
    """
    match source:
        case (ast.Attribute(value=owner, attr=name), is_key) if text_of(owner) == removal.base:
            container = dict(attributes_of(holder)).get(name)
        case _:
            return ""
    entries = iter(elements_of(container) or ())
    if is_key and is_kind(container, dict):
        entries = (key for key, _ in dict_items(container))
    types = set(map(type, islice(entries, _MOST_KEYS)))
    return class_name(types.pop()) if len(types) == 1 and types < set(_PLAIN_TYPES) else ""
