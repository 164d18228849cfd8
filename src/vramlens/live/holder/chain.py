"""Chains: how a root holds a tensor, in words that a person would use.

What only the interpreter sees (an instance's dict, the tuple and the cells of a closure) is folded
into the edge that a
person writes: ``.history``, ``[3]``, ``closure variable store``.
"""

from __future__ import annotations

import functools
import types
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

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
from vramlens.trace.stacks import base_name
from vramlens.units import counted

_MOST_SEARCHED = 2_000_000
_LONGEST_CHAIN = 60  # links: what is between its ends is folded
_LONGEST_RUN = 3  # of autograd nodes: longer ones are folded
_TABLES = ("_modules", "_parameters", "_buffers")
_GENERATORS = {
    types.GeneratorType: "gi_frame",
    types.CoroutineType: "cr_frame",
    types.AsyncGeneratorType: "ag_frame",
}


@dataclass(frozen=True, slots=True)
class Link:
    """One object in a chain, and how the one before holds it.

    Attributes:
        how: root, variable, global, attribute, key, index, element, closure, default, function,
            self, argument, cached, traceback, frame, context, grad_fn, next, saved, gradient, base,
            hook, or other.
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
        }.get(self.how, self.name or self.how)


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
    index = 0
    if root is None:
        links.append(Link("other", "", order[path[0]], path[0]))
    elif root.kind == "variable":
        links.append(Link("variable", root.name, order[path[0]], path[0]))
    elif root.kind != "module":
        links.append(Link("root", root.name, order[path[0]], path[0]))
    while index + 1 < len(path):
        taken, how, name = _step(search, path, index, parents, root)
        index += taken
        links.append(Link(how, name, order[path[index]], path[index]))
    return Chain(root, tuple(links))


def _step(
    search: Search,
    path: Sequence[int],
    index: int,
    parents: dict[int, tuple[int, str]],
    root: Root | None,
) -> tuple[int, str, str]:
    """How many objects the next edge passes, and what it is."""
    order = search.order
    values = [order[position] for position in path[index : index + 5]]
    if index == 0 and root is not None and root.kind == "module":
        return 1, "global", _key_of(values[0], values[1])
    return link_between(search, values, parents[path[index + 1]][1])


def link_between(search: Search, values: Sequence[Any], label: str = "") -> tuple[int, str, str]:
    """How the first of some objects holds the next: how many of them the edge passes, what it is,
    its name.

    Args:
        values: an object and the four that follow it on the way.
        label: what the search itself knows of the edge.
    """
    parent, following = values[0], list(values[1:])
    if label:
        how = {".grad_fn": "grad_fn", ".next": "next", ".grad": "gradient", "._base": "base"}.get(
            label
        )
        return (
            1,
            how or ("saved" if label.startswith("._saved") else "attribute"),
            label.removeprefix("."),
        )
    with suppress(Exception):
        found = _through_insides(parent, following)
        if found is not None:
            return found
    with suppress(Exception):
        return 1, *_edge(search, parent, following[0])
    return 1, "other", ""


def _through_insides(parent: Any, following: list[Any]) -> tuple[int, str, str] | None:
    """Edges that pass objects which a person does not see."""
    first, kind = following[0], type(parent)
    if kind is types.FunctionType:
        closure, names = parent.__closure__, parent.__code__.co_freevars
        if first is closure:
            place = next(
                (
                    i
                    for i, cell in enumerate(closure)
                    if len(following) > 1 and cell is following[1]
                ),
                None,
            )
            name = names[place] if place is not None else ""
            return min(len(following), 3), "closure", name
        if first is parent.__defaults__ and len(following) > 1:
            first_default = parent.__code__.co_argcount - len(parent.__defaults__)
            place = next(
                (i for i, value in enumerate(parent.__defaults__) if value is following[1]), 0
            )
            return 2, "default", parent.__code__.co_varnames[first_default + place]
        if first is parent.__kwdefaults__ and len(following) > 1:
            return 2, "default", _key_of(first, following[1]).strip("'")
        if first is parent.__dict__ and len(following) > 1:
            return 2, "attribute", _key_of(first, following[1]).strip("'")
    if is_kind(parent, type) and type(first) is dict and len(following) > 1:
        name = next(
            (name for name, value in class_dict(parent).items() if value is following[1]), None
        )
        return None if name is None else (2, "class attribute", str(name))
    if kind is types.CellType:
        return 1, "closure", ""
    if kind is functools.partial and type(first) in (tuple, dict) and len(following) > 1:
        return 2, "argument", _key_of(first, following[1]) if type(first) is dict else ""
    names = namespace_of(parent) if len(following) > 1 and type(first) is dict else None
    if names is not None and first is names:
        name = _key_of(first, following[1]).strip("'")
        if len(following) > 2 and name in _TABLES and type(following[1]) is dict:
            return 3, *_in_table(name, following[1], following[2])
        return 2, "attribute", name
    if names is not None:  # from Python 3.13 on an object holds its attributes itself
        name = next((name for name in _TABLES if names.get(name) is first), "")
        if name:
            return 2, *_in_table(name, first, following[1])
    if (
        any(class_name(base) == "_local" for base in class_order(kind))
        and type(first) is dict
        and len(following) > 2
    ):
        return 3, "attribute", _key_of(following[1], following[2]).strip("'")
    if class_name(kind) in ("hamt", "hamt_bitmap_node", "hamt_array_node", "hamt_collision_node"):
        return 1, "context", ""
    return None


def _in_table(name: str, table: Any, value: Any) -> tuple[str, str]:
    """How a module holds a value in one of its tables: as an attribute; of a Sequential by
    number.
    """
    inner = _key_of(table, value).strip("'")
    return ("index" if inner.isdigit() and name == "_modules" else "attribute"), inner


def _edge(search: Search, parent: Any, child: Any) -> tuple[str, str]:
    """How a parent holds a child directly, and the name of it."""
    kind = type(parent)
    if is_kind(parent, dict):
        for key, value in dict_items(parent)[:_MOST_SEARCHED]:
            if value is child:
                return "key", key_text(key)
            if key is child:
                return "element", "a key"
    elements = elements_of(parent)
    if elements is not None:
        is_set = is_kind(parent, set, frozenset)
        for place, value in zip(range(_MOST_SEARCHED), elements, strict=False):
            if value is child:
                return ("element", "") if is_set else ("index", str(place))
    if kind is types.FrameType:
        return "variable", _key_of(frame_variables(parent), child).strip("'")
    if kind in _GENERATORS:
        frame = getattr(parent, _GENERATORS[kind])
        return "variable", "" if frame is None else _key_of(frame_variables(frame), child).strip(
            "'"
        )
    if kind is types.TracebackType:
        return ("frame", "") if child is parent.tb_frame else ("traceback", "")
    if kind is types.MethodType:
        return ("self", "") if child is parent.__self__ else ("function", "")
    if kind is functools.partial:
        return "function", ""
    if class_name(kind) == "_lru_cache_wrapper":
        return (
            ("function", "")
            if child is dict(attributes_of(parent)).get("__wrapped__")
            else ("cached", "")
        )
    if is_kind(parent, BaseException):
        for name in ("__traceback__", "__cause__", "__context__", "args"):
            if getattr(BaseException, name).__get__(parent) is child:
                return ("traceback" if name == "__traceback__" else "attribute"), name
    if is_kind(parent, type):
        for name, value in class_dict(parent).items():
            if value is child:
                return "class attribute", name
    for name, value in attributes_of(parent):
        if value is child:
            return "attribute", name
    if search.torch.is_tensor(parent):
        for label, value in search.torch.held_by_tensor(parent):
            if value is child:
                return "attribute", label.removeprefix(".")
    if search.torch.is_node(parent):
        for name, value in dict_items(namespace_of(parent)):
            if value is child:
                return "attribute", str(name)
        return "attribute", "a hook"
    if kind is property:
        return "function", ""
    return "other", ""


def _key_of(table: Any, value: Any) -> str:
    for key, held in dict_items(table):
        if held is value:
            return str(key) if type(key) is str and str.isidentifier(key) else key_text(key)
    return ""


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
        return f"the frame of {value.f_code.co_name}() ({base_name(value.f_code.co_filename)}:{value.f_lineno})"
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
        return f"{root.code.co_name}() ({base_name(root.code.co_filename)}:{root.line}){thread}, {state}"
    if root.kind == "hidden":
        return "held by the interpreter, where nobody can look"
    if root.kind == "class":
        return "classes"
    if root.kind == "context":
        return "context variables"
    return "the interpreter"


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
        run = index
        while run < len(links) and search.torch.is_node(links[run].value):
            run += 1
        if run - index > _LONGEST_RUN:
            kinds = Counter(class_name(type(link.value)) for link in links[index:run])
            common = ", ".join(f"{name} × {count}" for name, count in kinds.most_common(3))
            lines.append(f"… {counted(run - index, 'autograd node')} ({common})")
            index = run
            continue
        link = links[index]
        if (
            link.how == "traceback"
        ):  # one after the other, one for each frame that the exception came through
            while index + 1 < len(links) and links[index + 1].how in ("traceback", "frame"):
                index += 1
        lines.append(f"{link.text}: {type_text(search, links[index].value)}")
        index += 1
    return lines
