"""How well a statement fits as the one that keeps: what it does to a container, and what it puts
there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from vramlens.live.heap.objects import class_name, dict_items, elements_of, is_kind
from vramlens.live.heap.search import Search
from vramlens.live.source.expressions import is_empty
from vramlens.live.source.searched_names import Wanted
from vramlens.live.source.source import Function, Store, read_source

_GROWS = frozenset((
    "append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault", "put", "put_nowait",
    "push", "heappush", "insort", "insort_left", "insort_right", "__setitem__", "send", "set", "register_buffer",
))  # fmt: skip
_TAKES = frozenset((
    "pop", "popleft", "popitem", "clear", "remove", "discard", "get", "get_nowait", "items", "keys", "values", "copy",
    "index", "count", "sort", "reverse", "backward", "item", "detach", "cpu", "zero_grad", "step", "size", "mean",
))  # fmt: skip


def value_made_at(store: Store, file: str, line: int) -> bool:
    """Whether what a statement stores is a variable that a line of the same function makes."""
    if store.file != file or store.value is None:
        return False
    if store.line == line:
        return True
    module = read_source(file)
    names = {node.id for value in store.arguments or (store.value,) for node in ast.walk(value)
             if isinstance(node, ast.Name)}  # fmt: skip
    return module is not None and any(
        other.line == line and other.function is store.function
        for name in names
        for other in module.stores.get(name, ())
        if other.how == "assign"
    )


def is_removal(store: Store) -> bool:
    """Whether a statement takes away what was put there."""
    if store.how in ("delete", "slice"):
        return True
    if store.how == "call":
        return store.method in (
            "pop",
            "popleft",
            "popitem",
            "clear",
            "remove",
            "discard",
            "get",
            "get_nowait",
            "heappop",
        )
    if store.how == "assign" and is_empty(store.value):
        last = store.function.name.rpartition(".")[2]
        return last not in ("__init__", "<module>", "setup") or store.loops > 0
    return False


def strength(store: Store, want: Wanted) -> int:
    """How much a statement lets pile up what it stores: points, negative where it cannot be the
    one.
    """
    if is_removal(store):
        return -200
    if store.how == "call":
        if store.method in _GROWS:
            return 45
        if store.method == "step" and want.is_inside:
            return -5  # of an optimizer: it makes the state of parameters
        if store.method in _TAKES or not store.arguments:
            return -120
        if store.method == "()":
            return 12 if want.is_inside else -60
        if store.method.startswith(
            ("register", "add", "push", "put", "store", "record", "log", "track", "save")
        ):
            return 40
        return 25 if want.is_inside else 8
    if store.how == "item" and is_empty(store.value):
        return 0
    if store.how in ("add", "item"):
        return 45
    if store.refers_to_itself:
        return 45
    if is_empty(store.value):
        return 0
    return 15


def class_around(function: Function) -> str:
    """The class in whose methods a function is, nested ones included."""
    here: Function | None = function
    while here is not None:
        if here.owner:
            return here.owner
        here = here.outer
    return ""


def is_one(owner: str, classes: Iterable[str]) -> bool:
    """Whether a class is one of some, by its last name."""
    last = owner.rpartition(".")[2]
    return bool(owner) and any(name == owner or name.rpartition(".")[2] == last for name in classes)


def likeness(search: Search, value: ast.expr, held: Any, is_graph: bool) -> int:
    """How well what a statement stores goes with what is there."""
    if isinstance(value, ast.Call):
        last = value.func.attr if isinstance(value.func, ast.Attribute) else ""
        plain = value.func.id if isinstance(value.func, ast.Name) else ""
        if last == "numpy" and class_name(type(held)) == "ndarray":
            return 8
        if last in ("item", "tolist", "numpy") or plain in (
            "float",
            "int",
            "str",
            "len",
            "bool",
            "repr",
        ):
            return -60
        if is_graph and last in ("detach", "detach_", "cpu") and ".detach(" in ast.unparse(value):
            return -40
    if isinstance(value, ast.Attribute) and value.attr == "data" and is_graph:
        return -40
    if isinstance(value, (ast.Constant, ast.JoinedStr)):
        return -60
    is_tensor = search.torch.is_tensor(held)
    for shape, kind in ((ast.Tuple, tuple), (ast.Dict, dict), (ast.List, list)):
        if isinstance(value, shape):
            return 8 if is_kind(held, kind) else -10 if is_tensor else 0
    return 0


def example_of(value: Any) -> Any:
    """One of the things that a container keeps; the container itself where it is none."""
    if is_kind(value, dict):
        items = dict_items(value)
        return items[-1][1] if items else value
    elements = elements_of(value)
    if elements is None:
        return value
    found = list(elements)
    return found[-1] if found else value
