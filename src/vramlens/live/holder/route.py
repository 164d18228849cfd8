"""Routes: a chain as names alone, to find an object again at a later step without having held it
meanwhile.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from vramlens.live.heap.objects import (
    attributes_of,
    class_dict,
    dict_items,
    frame_variables,
    is_kind,
    key_text,
    length_of,
)
from vramlens.live.holder.chain import Chain

_DEEPEST, _MOST_EDGES = 500, 50


@dataclass(frozen=True, slots=True)
class Route:
    """The way to an object by names.

    Attributes:
        module: the module whose global it begins with; empty for a variable.
        function: of a variable: file, first line and name of the function.
        name: of the global or variable.
        edges: how each object holds the next, and by which name.
    """

    module: str
    function: tuple[str, int, str] | None
    name: str
    edges: tuple[tuple[str, str], ...]

    def find(self) -> Any:
        """What is there now; None where the way ends before."""
        names = self._names()
        value = names.get(self.name) if names is not None else None
        for how, name in self.edges:
            if value is None:
                return None
            value = _held(value, how, name)
        return value

    def _names(self) -> dict[Any, Any] | None:
        if self.function is None:
            names = getattr(sys.modules.get(self.module), "__dict__", None)
            return names if type(names) is dict else None
        frame: Any = sys._getframe(1)
        for _ in range(_DEEPEST):
            if frame is None:
                break
            code = frame.f_code
            if (code.co_filename, code.co_firstlineno, code.co_name) == self.function:
                return frame_variables(frame)
            frame = frame.f_back
        return None


def route_of(chain: Chain) -> Route | None:
    """The route along a chain to its last object; None where not all of it has names."""
    root, links = chain.root, chain.links
    if root is None or not links or links[0].how not in ("global", "variable"):
        return None
    edges = tuple((link.how, link.name) for link in links[1:])
    if len(edges) > _MOST_EDGES or any(
        how not in ("attribute", "class attribute", "key", "index") for how, _ in edges
    ):
        return None
    if root.kind == "module":
        return Route(root.name, None, links[0].name, edges)
    if root.kind == "variable" and root.code is not None and not root.thread:
        code = root.code
        return Route("", (code.co_filename, code.co_firstlineno, code.co_name), root.name, edges)
    return None


def size_of(value: Any) -> int:
    """How many things an object holds, where it is a container; 1 for what is there, 0 for
    nothing.
    """
    if value is None:
        return 0
    length = length_of(value)
    return 1 if length is None else length


def _held(value: Any, how: str, name: str) -> Any:
    if how == "attribute":
        for base in ("_buffers", "_parameters", "_modules"):
            inner = dict(attributes_of(value)).get(base)
            if type(inner) is dict and name in inner:
                return inner[name]
        return dict(attributes_of(value)).get(name)
    if how == "class attribute" and is_kind(value, type):
        return class_dict(value).get(name)
    if how == "key":
        return next(
            (candidate for key, candidate in dict_items(value) if key_text(key) == name), None
        )
    if how == "index" and is_kind(value, list, tuple) and name.isdigit():
        kind: Any = list if is_kind(value, list) else tuple
        place = int(name)
        return kind.__getitem__(value, place) if place < kind.__len__(value) else None
    return None
