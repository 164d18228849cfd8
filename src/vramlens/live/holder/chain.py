"""Chains: how a root holds a tensor, in words that a person would use.

What only the interpreter sees (an instance's dict, the tuple and the cells of a closure) is folded
into the edge that a person writes: ``.history``, ``[3]``, ``closure variable store``.
"""

from __future__ import annotations

import contextvars
import functools
import types
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any

from vramlens.ground.place import base_name
from vramlens.ground.program_errors import own_errors
from vramlens.live.heap.objects import (
    attributes_of,
    class_dict,
    class_name,
    class_order,
    class_path,
    code_of,
    dict_items,
    elements_of,
    frame_variables,
    is_kind,
    key_text,
    length_of,
    namespace_of,
)
from vramlens.live.heap.roots import Root
from vramlens.live.heap.search import Search
from vramlens.units import counted

_MOST_SEARCHED = 2_000_000
"""Entries of a container that are searched for the one that leads on, one look each. In a longer one
the link is named without its key.
"""
_LONGEST_CHAIN = 60
"""Links: what is between its ends is folded. A report shows twelve; the rest tells a linked list."""
_LONGEST_RUN = 3
"""Of autograd nodes: longer ones are folded, as their names say no more than the first and last."""
TABLES = ("_modules", "_parameters", "_buffers")
"""Where a module keeps its parts."""
_LONGEST_EDGE = 5
"""Objects of one edge, with both ends: object, its dict, a cell, a tuple and what they hold. No edge
of the interpreter's own is longer.
"""
_LABELS = {".grad_fn": "grad_fn", ".next": "next", ".grad": "gradient", "._base": "base"}
_CONTEXT_NODES = ("hamt", "hamt_bitmap_node", "hamt_array_node", "hamt_collision_node")
_ROOT_TEXTS = {
    "hidden": "held by the interpreter itself",
    "class": "classes",
    "context": "context variables",
}
_EXCEPTION_PARTS = ("__traceback__", "__cause__", "__context__", "args")
_GENERATORS = {
    id(types.GeneratorType): "gi_frame",
    id(types.CoroutineType): "cr_frame",
    id(types.AsyncGeneratorType): "ag_frame",
}
"""Where these kinds, by identity, keep their frame."""


@dataclass(frozen=True, slots=True)
class Link:
    """One object in a chain, and how the one before holds it.

    Attributes:
        how: root, variable, context variable, global, attribute, key, index, element, closure,
            default, function, self, argument, cached, traceback, frame, context, grad_fn, next,
            saved, gradient, base, hook, or other.
        name: of the variable, attribute or parameter, or the text of the key.
        value: the object.
        position: in the search's order.
    """

    how: str
    name: str
    value: Any
    position: int

    @property
    def text(self) -> str:
        """How it is held: ``.history``, ``[3]``, ``variable x``."""
        return {
            "attribute": f".{self.name}",
            "class attribute": f".{self.name}",
            "key": f"[{self.name}]",
            "index": f"[{self.name}]",
            "element": "an element",
            "global": self.name,
            "variable": f"variable {self.name}",
            "closure": f"closure variable {self.name}",
            "default": f"default of parameter {self.name}",
            "cached": "a cached result",
            "context variable": f"context variable {self.name}",
        }.get(self.how, self.name or self.how)


@dataclass(frozen=True, slots=True)
class Edge:
    """How an object holds another.

    Attributes:
        how, name: as in a Link.
        passed: how many objects the edge passes, the last one included.
    """

    how: str
    name: str = ""
    passed: int = 1


@dataclass(frozen=True, slots=True)
class Chain:
    """The way from a root to an object."""

    root: Root | None
    links: Sequence[Link] = field(default_factory=tuple)


def chain_of(search: Search, path: Sequence[int], parents: dict[int, tuple[int, str]]) -> Chain:
    """The chain along positions, from a root on."""
    order = search.order
    root = search.roots.get(path[0])
    links: list[Link] = []
    if root is None:
        links.append(Link("other", "", order[path[0]], path[0]))
    elif root.kind != "module":
        how = "variable" if root.kind == "variable" else "root"
        links.append(Link(how, root.name, order[path[0]], path[0]))
    index = 0
    while index + 1 < len(path):
        values = [order[position] for position in path[index : index + _LONGEST_EDGE]]
        if index == 0 and root is not None and root.kind == "module":
            edge = Edge("global", _name_in(values[0], values[1]))
        else:
            edge = link_between(search, values, parents[path[index + 1]][1])
        index += edge.passed
        links.append(Link(edge.how, edge.name, order[path[index]], path[index]))
    return Chain(root, tuple(links))


def link_between(search: Search, values: Sequence[Any], label: str = "") -> Edge:
    """How the first of some objects holds the next.

    Args:
        values: an object and the four that follow it on the way.
        label: what the search itself knows of the edge.
    """
    if label:
        return Edge(_how_of_label(label), label.removeprefix("."))
    parent, *following = values
    with own_errors():
        edge = _edge_through_insides(parent, following)
        if edge is not None:
            return edge
    with own_errors():
        return _direct_edge(search, parent, following[0])
    return Edge("other")


def _how_of_label(label: str) -> str:
    if label.startswith("._saved"):
        return "saved"
    return _LABELS.get(label, "attribute")


def _edge_through_insides(parent: Any, following: list[Any]) -> Edge | None:
    """Edges that pass objects which a person does not see."""
    kind, first = type(parent), following[0]
    if kind is types.CellType:
        return Edge("closure")
    if kind is contextvars.Context:
        return _edge_of_context(parent, following)
    if class_name(kind) in _CONTEXT_NODES:
        return Edge("context")
    edge = _edge_of_function(parent, following) if kind is types.FunctionType else None
    if edge is not None or len(following) < 2:
        return edge
    if kind is functools.partial and type(first) in (tuple, dict):
        return Edge("argument", _name_in(first, following[1]), passed=2)
    if type(first) is not dict:
        return None
    if is_kind(parent, type):
        return _edge_of_class(parent, following[1])
    return _edge_of_attributes(parent, following)


def _edge_of_context(context: contextvars.Context, following: list[Any]) -> Edge | None:
    """A variable of a task's context: through the nodes of its table."""
    places = {id(part): place for place, part in enumerate(following, 1)}
    for variable, value in context.items():
        if id(value) in places:
            return Edge("context variable", variable.name, passed=places[id(value)])
    return None


def _edge_of_closure(function: types.FunctionType, following: list[Any]) -> Edge:
    """A variable in the closure of a function: through the tuple and the cell."""
    name = ""
    if len(following) > 1:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        name = next((variable for variable, cell in cells if cell is following[1]), "")
    return Edge("closure", name, passed=min(len(following), 3))


def _edge_of_function(function: types.FunctionType, following: list[Any]) -> Edge | None:
    """A closure's variable, a default or an attribute of a function: through the table that has
    it.
    """
    table = following[0]
    if table is function.__closure__:
        return _edge_of_closure(function, following)
    if len(following) < 2:
        return None
    child = following[1]
    defaults = function.__defaults__
    if defaults is not None and table is defaults:
        first_default = function.__code__.co_argcount - len(defaults)
        places = (place for place, default in enumerate(defaults) if default is child)
        name = function.__code__.co_varnames[first_default + next(places, 0)]
        return Edge("default", name, passed=2)
    if table is function.__kwdefaults__:
        return Edge("default", _plain_name_in(table, child), passed=2)
    if table is function.__dict__:
        return Edge("attribute", _plain_name_in(table, child), passed=2)
    return None


def _edge_of_class(cls: Any, child: Any) -> Edge | None:
    names = (name for name, attribute in class_dict(cls).items() if attribute is child)
    name = next(names, None)
    return None if name is None else Edge("class attribute", str(name), passed=2)


def _edge_of_attributes(parent: Any, following: list[Any]) -> Edge | None:
    """An attribute of an instance: through its dict, and through a module's tables."""
    table, child = following[0], following[1]
    attributes = namespace_of(parent)
    if attributes is table:
        return _edge_of_namespace(following)
    if attributes is not None:  # from Python 3.13 on an object holds its attributes itself
        for name in TABLES:
            if attributes.get(name) is table:
                return _edge_of_table(name, table, child, passed=2)
    is_local = any(class_name(base) == "_local" for base in class_order(type(parent)))
    if is_local and len(following) > 2:
        return Edge("attribute", _plain_name_in(child, following[2]), passed=3)
    return None


def _edge_of_namespace(following: list[Any]) -> Edge:
    table, child = following[:2]
    name = _plain_name_in(table, child)
    if len(following) > 2 and name in TABLES and type(child) is dict:
        return _edge_of_table(name, child, following[2], passed=3)
    return Edge("attribute", name, passed=2)


def _edge_of_table(table_name: str, table: Any, child: Any, *, passed: int) -> Edge:
    """A part of a module: an attribute; of a Sequential by number."""
    name = _plain_name_in(table, child)
    is_number = name.isdigit() and table_name == "_modules"
    return Edge("index" if is_number else "attribute", name, passed=passed)


def _direct_edge(search: Search, parent: Any, child: Any) -> Edge:
    return (
        _edge_of_container(parent, child)
        or _edge_of_built_in(parent, child)
        or _edge_of_named(parent, child)
        or _edge_of_autograd(search, parent, child)
        or Edge("function" if type(parent) is property else "other")
    )


def _edge_of_container(parent: Any, child: Any) -> Edge | None:
    if is_kind(parent, dict):
        for key, value in dict_items(parent)[:_MOST_SEARCHED]:
            if value is child:
                return Edge("key", key_text(key))
            if key is child:
                return Edge("element", "a key")
    elements = elements_of(parent)
    if elements is None:
        return None
    is_set = is_kind(parent, set, frozenset)
    for place, element in enumerate(islice(elements, _MOST_SEARCHED)):
        if element is child:
            return Edge("element") if is_set else Edge("index", str(place))
    return None


def _edge_of_built_in(parent: Any, child: Any) -> Edge | None:
    """What objects of the interpreter hold: frames, generators, tracebacks, methods, partials."""
    kind = type(parent)
    if kind is types.FrameType:
        return _edge_of_frame(parent, child)
    if id(kind) in _GENERATORS:
        return _edge_of_frame(getattr(parent, _GENERATORS[id(kind)]), child)
    if kind is types.TracebackType:
        return Edge("frame" if child is parent.tb_frame else "traceback")
    if kind is types.MethodType:
        return Edge("self" if child is parent.__self__ else "function")
    if kind is functools.partial:
        return Edge("function")
    if class_name(kind) == "_lru_cache_wrapper":
        is_wrapped = child is dict(attributes_of(parent)).get("__wrapped__")
        return Edge("function" if is_wrapped else "cached")
    return None


def _edge_of_frame(frame: types.FrameType | None, child: Any) -> Edge:
    name = "" if frame is None else _plain_name_in(frame_variables(frame), child)
    return Edge("variable", name)


def _edge_of_named(parent: Any, child: Any) -> Edge | None:
    if is_kind(parent, BaseException):
        for name in _EXCEPTION_PARTS:
            if getattr(BaseException, name).__get__(parent) is child:
                return Edge("traceback" if name == "__traceback__" else "attribute", name)
    edge = None
    if is_kind(parent, type):
        edge = _edge_to(child, "class attribute", class_dict(parent).items())
    return edge or _edge_to(child, "attribute", attributes_of(parent))


def _edge_of_autograd(search: Search, parent: Any, child: Any) -> Edge | None:
    if search.torch.is_tensor(parent):
        return _edge_to(child, "attribute", search.torch.held_by_tensor(parent))
    if search.torch.is_node(parent):
        attributes = dict_items(namespace_of(parent))
        return _edge_to(child, "attribute", attributes) or Edge("attribute", "a hook")
    return None


def _edge_to(child: Any, how: str, parts: Iterable[tuple[Any, Any]]) -> Edge | None:
    """The edge to a child by the name or label that it has among parts; None where it is none."""
    name = next((name for name, part in parts if part is child), None)
    return None if name is None else Edge(how, str(name).removeprefix("."))


def _name_in(table: Any, child: Any) -> str:
    """The key under which a table has a child, as one would write it; empty where it has not."""
    for key, value in dict_items(table):
        if value is child:
            is_name = type(key) is str and key.isidentifier()
            return str(key) if is_name else key_text(key)
    return ""


def _plain_name_in(table: Any, child: Any) -> str:
    return _name_in(table, child).strip("'")


def type_text(search: Search, value: Any) -> str:
    """What an object is: ``list of 12``, ``Tensor [8, 64] float32``, ``function hook
    (train.py:7)``.
    """
    kind = type(value)
    if search.torch.is_tensor(value):
        return f"{class_name(kind)} {search.torch.shape_text(value)}"
    code = code_of(value) if kind in (types.FunctionType, types.MethodType) else None
    if code is not None:
        return f"function {code.co_name} ({base_name(code.co_filename)}:{code.co_firstlineno})"
    if kind is types.FrameType:
        place = f"{base_name(value.f_code.co_filename)}:{value.f_lineno}"
        return f"the frame of {value.f_code.co_name}() ({place})"
    if is_kind(value, type):
        return f"class {class_path(value)}"
    size = length_of(value)
    return class_path(kind) if size is None else f"{class_path(kind)} of {size:,}"


def root_text(root: Root | None) -> str:
    """What a root is."""
    if root is None:
        return "held from outside of Python"
    if root.kind == "module":
        return f"module {root.name}"
    if root.kind == "variable" and root.code is not None:
        thread = f" in thread {root.thread}" if root.thread else ""
        state = "where the program ended" if root.has_ended else "running"
        place = f"{base_name(root.code.co_filename)}:{root.line}"
        return f"{root.code.co_name}() ({place}){thread}, {state}"
    return _ROOT_TEXTS.get(root.kind, "the interpreter")


def texts_of(search: Search, chain: Chain) -> list[str]:
    """The chain as lines, root first; long runs of autograd nodes are folded."""
    lines = [root_text(chain.root)]
    links = list(chain.links)
    index = 0
    while index < len(links):
        if index == _LONGEST_CHAIN // 2 and len(links) - index > _LONGEST_CHAIN:
            left_out = len(links) - index - _LONGEST_CHAIN // 2
            lines.append(f"… {counted(left_out, 'object')}")
            index += left_out
        nodes = list(takewhile(lambda link: search.torch.is_node(link.value), links[index:]))
        if len(nodes) > _LONGEST_RUN:
            lines.append(_run_text(nodes))
            index += len(nodes)
            continue
        last = _end_of_traceback(links, index)
        lines.append(f"{links[index].text}: {type_text(search, links[last].value)}")
        index = last + 1
    return lines


def _run_text(nodes: Sequence[Link]) -> str:
    kinds = Counter(class_name(type(link.value)) for link in nodes)
    common = ", ".join(f"{name} × {count}" for name, count in kinds.most_common(3))
    return f"… {counted(len(nodes), 'autograd node')} ({common})"


def _end_of_traceback(links: Sequence[Link], index: int) -> int:
    """The last of a traceback's links, one for each frame that the exception came through; of
    other links the index itself.
    """
    if links[index].how == "traceback":
        while index + 1 < len(links) and links[index + 1].how in ("traceback", "frame"):
            index += 1
    return index
