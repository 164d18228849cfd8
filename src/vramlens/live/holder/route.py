"""Routes: a chain as names alone, to find an object again at a later step without having held it
meanwhile.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from vramlens.live.growth.last_frames import kept_frames
from vramlens.live.heap.objects import (
    attributes_of,
    class_dict,
    class_module,
    class_name,
    dict_items,
    frame_variables,
    frames_from,
    is_kind,
    key_text,
    length_of,
)
from vramlens.live.heap.tees import entries_of, is_tee
from vramlens.live.holder.chain import TABLES, Chain, Link

_DEEPEST, _MOST_EDGES = 500, 50
"""Functions that are searched for the one of a route, and edges of a route: both in every step. Deeper
chains are linked lists, and deeper calls recursion.
"""
_MOST_TIMERS = 1024
"""That are asked, in every step, whether they are cancelled: some ten microseconds."""
_STARTS = ("global", "variable")
_EDGES = frozenset(("attribute", "class attribute", "key", "index"))


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
        running_frames = islice(frames_from(sys._getframe(1)), _DEEPEST)
        for frame in (*running_frames, *kept_frames):
            if _place_of(frame.f_code) == self.function:
                return frame_variables(frame)
        return None


def route_of(chain: Chain) -> Route | None:
    """The route along a chain to its last object; None where not all of it has names."""
    root, links = chain.root, chain.links
    if root is None or not links or not _can_be_followed(links):
        return None
    edges = tuple((link.how, link.name) for link in links[1:])
    if root.kind == "module":
        return Route(root.name, None, links[0].name, edges)
    if root.kind == "variable" and root.code is not None and not root.thread:
        return Route("", _place_of(root.code), root.name, edges)
    return None


def _can_be_followed(links: Sequence[Link]) -> bool:
    start, *edges = links
    is_short = len(edges) <= _MOST_EDGES
    return start.how in _STARTS and is_short and _EDGES.issuperset(link.how for link in edges)


def _place_of(code: types.CodeType) -> tuple[str, int, str]:
    return code.co_filename, code.co_firstlineno, code.co_name


def size_of(value: Any) -> int:
    """How many things an object holds, where it is a container; 1 for what is there, 0 for
    nothing. Timers that are cancelled hold nothing: an event loop drops them in bulk.
    """
    if value is None:
        return 0
    if is_tee(value):
        return entries_of(value)[1]
    length = length_of(value)
    if length and type(value) is list and _is_timer(value[0]):
        return _waiting_timers(value, length)
    return 1 if length is None else length


def _is_timer(value: object) -> bool:
    kind = type(value)
    return class_name(kind) == "TimerHandle" and class_module(kind) == "asyncio.events"


def _waiting_timers(timers: Sequence[Any], length: int) -> int:
    """How many of some timers are not cancelled, by every n-th where they are many."""
    asked = timers[:: length // _MOST_TIMERS + 1]
    waiting = sum(not timer._cancelled for timer in asked)
    return round(length * waiting / max(len(asked), 1))


def _held(value: Any, how: str, name: str) -> Any:
    if how == "attribute":
        return _attribute_of(value, name)
    if how == "class attribute" and is_kind(value, type):
        return class_dict(value).get(name)
    if how == "key":
        candidates = (candidate for key, candidate in dict_items(value) if key_text(key) == name)
        return next(candidates, None)
    if how == "index" and name.isdigit():
        return _element_of(value, int(name))
    return None


def _element_of(value: Any, place: int) -> Any:
    kind: Any = next((kind for kind in (list, tuple) if is_kind(value, kind)), None)
    if kind is None or place >= kind.__len__(value):
        return None
    return kind.__getitem__(value, place)


def _attribute_of(owner: Any, name: str) -> Any:
    """An attribute of an object, or a part of a module."""
    attributes = dict(attributes_of(owner))
    for table_name in reversed(TABLES):
        table = attributes.get(table_name)
        if type(table) is dict and name in table:
            return table[name]
    return attributes.get(name)
