"""How well a statement fits as the one that keeps: what it does to a container, and what it puts
there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from itertools import chain
from typing import Any

from vramlens.live.heap.objects import class_name, dict_items, elements_of, is_kind
from vramlens.live.heap.tensors import TorchObjects
from vramlens.live.source.expressions import is_empty, nodes_in
from vramlens.live.source.searched_names import SearchedName
from vramlens.live.source.source_stores import Function, Store, read_source

_GROWS = frozenset((
    "append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault", "put", "put_nowait",
    "push", "heappush", "insort", "insort_left", "insort_right", "__setitem__", "send", "set", "register_buffer",
))  # fmt: skip
NAMING_METHODS = (
    "register_buffer",
    "register_parameter",
    "add_module",
    "register_module",
    "__setattr__",
    "setattr",
)
"""What puts something under a name, its first argument; of ``setattr`` the second."""
_TAKES = frozenset((
    "pop", "popleft", "popitem", "clear", "remove", "discard", "get", "get_nowait", "items", "keys", "values", "copy",
    "index", "count", "sort", "reverse", "rotate", "move_to_end", "backward", "item", "detach", "cpu", "zero_grad",
    "step", "size", "mean",
))  # fmt: skip
_KEEPING = ("register", "add", "push", "put", "store", "record", "log", "track", "save")
_CONTAINERS: dict[type[ast.expr], type] = {ast.Tuple: tuple, ast.Dict: dict, ast.List: list}
_NUMBERS = ("float", "int", "str", "len", "bool", "repr")


def value_made_at(store: Store, file: str, line: int) -> bool:
    """Whether what a statement stores is a variable that a line of the same function makes."""
    if store.file != file or store.value is None:
        return False
    if store.line == line:
        return True
    module = read_source(file)
    if module is None:
        return False
    nodes = nodes_in(store.stored_expressions)
    variables = {node.id for node in nodes if isinstance(node, ast.Name)}
    makers = chain.from_iterable(module.stores.get(name, ()) for name in variables)
    return any(maker.line == line and maker.assigns_beside(store) for maker in makers)


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


def takes_from(removal: Store, store: Store) -> bool:
    """Whether a statement takes away what another one put there: ``get`` does from a queue, not
    from a dict.
    """
    is_queue = store.method in ("put", "put_nowait")
    return is_removal(removal) and (is_queue or removal.method not in ("get", "get_nowait"))


def ends_its_call(removal: Store, store: Store) -> bool:
    """Whether a call takes out at its end what it has put there: ``x[k] = v``, then ``del x[k]``
    under the same conditions. What a call leaves that fails or is cancelled in between stays.
    """
    function = store.function
    is_later = removal.function is function and removal.line > store.line
    if not is_later or function.node is None or removal.loops != store.loops:
        return False
    taken = removal.key if removal.how == "delete" else next(iter(removal.arguments), None)
    put = store.key if store.key is not None else store.value
    is_same = taken is not None and put is not None and ast.dump(taken) == ast.dump(put)
    return is_same and set(removal.guards) <= set(store.guards)


def strength(store: Store, searched: SearchedName) -> int:
    """How much a statement lets pile up what it stores: points, negative where it cannot be the
    one.
    """
    if is_removal(store):
        return -200
    if store.how == "call" and searched.name == "self" and searched.is_inside:
        # Of the user's methods one would find what they do; a library's hands on. What it makes
        # (self.layer(x)) is not thereby kept.
        return 40 if store.method.startswith(_KEEPING) else -200
    if store.how == "call":
        return _strength_of_call(store, is_inside=searched.is_inside)
    if store.how == "item" and is_empty(store.value):
        return 0
    if store.how in ("add", "item") or store.refers_to_itself:
        return 45
    return 0 if is_empty(store.value) else 15


def _strength_of_call(store: Store, *, is_inside: bool) -> int:
    method = store.method
    if method == "setdefault" and is_empty(store.value):
        return 0  # it makes the place to which another statement adds
    if method in NAMING_METHODS and not gives_a_name(store):
        return 0  # it fills one and the same entry, however often it runs
    if method in _GROWS:
        return 45
    if _is_in_place(method):
        return -120
    if method == "step" and is_inside:
        return -5  # of an optimizer: it makes the state of parameters
    if method in _TAKES or not store.arguments:
        return -120
    if method == "()":
        return 12 if is_inside else -60
    if method.startswith(_KEEPING):
        return 40
    return 25 if is_inside else 8


def _is_in_place(method: str) -> bool:
    """Whether a method is one of a tensor that changes its values: ``mul_``, ``copy_``."""
    return method.endswith("_") and not method.endswith("__")


def gives_a_name(store: Store) -> bool:
    """Whether a statement puts something under a name that it makes up: ``register_buffer(f"x{i}", x)``."""
    names = store.arguments[1:] if store.method == "setattr" else store.arguments
    return store.method in NAMING_METHODS and not isinstance(next(iter(names), None), ast.Constant)


def class_around(function: Function) -> str:
    """The class in whose methods a function is, nested ones included."""
    outer: Function | None = function
    while outer is not None:
        if outer.owner:
            return outer.owner
        outer = outer.outer
    return ""


def is_among(owner: str, classes: Iterable[str]) -> bool:
    """Whether a class is one of some, by its last name."""
    last = owner.rpartition(".")[2]
    return bool(owner) and any(name.rpartition(".")[2] == last for name in classes)


def likeness(torch: TorchObjects, stored: ast.expr, kept: Any, *, is_graph: bool) -> int:
    """How well what a statement stores goes with what is there: points."""
    if isinstance(stored, ast.Call):
        points = _likeness_of_call(stored, kept, is_graph=is_graph)
        if points is not None:
            return points
    if isinstance(stored, ast.Attribute) and stored.attr == "data" and is_graph:
        return -40
    if isinstance(stored, ast.Constant | ast.JoinedStr):
        return -60
    kind = _CONTAINERS.get(type(stored))
    if kind is None:
        return 0
    if is_kind(kept, kind):
        return 8
    return -10 if torch.is_tensor(kept) else 0


def _likeness_of_call(call: ast.Call, kept: Any, *, is_graph: bool) -> int | None:
    """Points for what a call gives; None where it says nothing."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method == "numpy" and class_name(type(kept)) == "ndarray":
        return 8
    is_number = isinstance(call.func, ast.Name) and call.func.id in _NUMBERS
    if is_number or method in ("item", "tolist", "numpy"):
        return -60
    is_cut = method in ("detach", "detach_", "cpu") and ".detach(" in ast.unparse(call)
    return -40 if is_graph and is_cut else None


def example_of(container: Any) -> Any:
    """One of the things that a container keeps; the container itself where it is none."""
    if is_kind(container, dict):
        pairs = dict_items(container)
        return pairs[-1][1] if pairs else container
    elements = list(elements_of(container) or ())
    return elements[-1] if elements else container
