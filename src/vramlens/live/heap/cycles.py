"""Circles: objects that hold each other, as a shortest way round with the edge to make weak."""

from __future__ import annotations

import math
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vramlens.live.heap.objects import class_path, code_of
from vramlens.live.heap.search import Search
from vramlens.live.holder.chain import Chain, Link, link_between
from vramlens.live.holder.keeper import Keeper, Statements
from vramlens.live.holder.registrations import is_hook_name

_MOST_STARTS = 50
_SHORT_CIRCLE = 4
BACK_NAMES = (
    "parent",
    "owner",
    "me",
    "self",
    "this",
    "back",
    "prev",
    "previous",
    "root",
    "trainer",
    "model",
    "ctx",
)
"""Attributes that lead back to what made an object, and holds it: they may be weak."""
_WRITTEN_EDGES = ("attribute", "closure", "class attribute", "key", "variable")


def components(below: Sequence[Sequence[int]]) -> tuple[list[int], dict[int, list[int]]]:
    """Tarjan's strongly connected components without recursion: of each object its number;
    members of the circles.
    """
    walk = _Tarjan(below)
    for start in range(len(below)):
        if walk.number[start] < 0:
            walk.visit_from(start)
    return walk.component, walk.circles


class _Tarjan:
    """The state of Tarjan's walk.

    Attributes:
        number: of each object, when it was first visited; -1 before.
        component: of each object the number of its component.
        circles: by number, the members of components that go round.
    """

    def __init__(self, below: Sequence[Sequence[int]]) -> None:
        self._below = below
        self.number, self._low = [-1] * len(below), [0] * len(below)
        self._on_stack = bytearray(len(below))
        self._stack: list[int] = []
        self._visited = self._components = 0
        self.component = [-1] * len(below)
        self.circles: dict[int, list[int]] = {}

    def visit_from(self, start: int) -> None:
        """Visits everything below an object that was not visited yet."""
        below, number, low, on_stack = self._below, self.number, self._low, self._on_stack
        work = [self._enter(start)]
        while work:
            parent, children = work[-1]
            for child in children:
                if number[child] < 0:
                    work.append(self._enter(child))
                    break
                if on_stack[child]:
                    low[parent] = min(low[parent], number[child])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[parent])
                if low[parent] == number[parent]:
                    self._close_component(parent, holds_itself=parent in below[parent])

    def _enter(self, place: int) -> tuple[int, Iterator[int]]:
        self.number[place] = self._low[place] = self._visited
        self._visited += 1
        self._stack.append(place)
        self._on_stack[place] = 1
        return place, iter(self._below[place])

    def _close_component(self, top: int, *, holds_itself: bool) -> None:
        start = len(self._stack) - 1
        while self._stack[start] != top:
            start -= 1
        members = self._stack[: start - 1 if start else None : -1]
        del self._stack[start:]
        for member in members:
            self._on_stack[member] = 0
            self.component[member] = self._components
        if len(members) > 1 or holds_itself:
            self.circles[self._components] = members
        self._components += 1


def circle_in(
    below: Sequence[Sequence[int]], labels: Mapping[tuple[int, int], str], members: Sequence[int]
) -> tuple[int, ...]:
    """A shortest circle in a component, through a gradient if one of it is in there."""
    inside = set(members)
    for (holder, child), label in labels.items():
        if label == ".grad" and holder in inside and child in inside:
            back = _way(below, child, holder, inside)
            if back:
                return (holder, *back[:-1])
            break
    best: tuple[int, ...] = ()
    for start in members[:_MOST_STARTS]:
        best = min((best, *_circles_from(start, below, inside)), key=_circle_length)
        if best and len(best) <= _SHORT_CIRCLE:
            break
    return (best[-1], *best[:-1]) if best else (members[0],)


def _circle_length(circle: tuple[int, ...]) -> float:
    return len(circle) or math.inf


def _circles_from(
    start: int, below: Sequence[Sequence[int]], inside: set[int]
) -> Iterator[tuple[int, ...]]:
    """Yields, for each child, the shortest way back to the start."""
    for child in below[start]:
        if child == start:
            yield (start,)
        elif child in inside:
            yield _way(below, child, start, inside)


def _way(below: Sequence[Sequence[int]], start: int, end: int, inside: set[int]) -> tuple[int, ...]:
    """The shortest way from one object to another, both included; empty where there is none."""
    previous = {start: -1}
    waiting = [start]
    for place in waiting:
        if place == end:
            path = [place]
            while previous[path[-1]] >= 0:
                path.append(previous[path[-1]])
            return tuple(path[::-1])
        for child in below[place]:
            if child in inside and child not in previous:
                previous[child] = place
                waiting.append(child)
    return ()


def fold_circle(
    search: Search,
    objects: Sequence[Any],
    circle: Sequence[int],
    labels: Mapping[tuple[int, int], str],
) -> list[Link]:
    """The edges around a circle, without the interpreter's own objects between them."""
    shown = [place for place in circle if not _is_inside(objects[place])]
    start = circle.index(shown[0]) if shown else 0
    turned = [*circle[start:], *circle[:start], circle[start]]
    links: list[Link] = []
    index = 0
    while index + 1 < len(turned):
        label = labels.get((turned[index], turned[index + 1]), "")
        following = [objects[place] for place in turned[index : index + 5]]
        edge = link_between(search, following, label)
        index = min(index + edge.passed, len(turned) - 1)
        links.append(Link(edge.how, edge.name, objects[turned[index]], turned[index]))
    return links


def gradient_name(links: Sequence[Link]) -> str:
    """``Parameter.grad``, where a circle goes through a gradient."""
    for index, link in enumerate(links):
        if link.how == "gradient":
            holder = links[index - 1].value
            return f"{class_path(type(holder))}.grad"
    return ""


def _is_inside(value: Any) -> bool:
    return type(value) in (dict, tuple, types.CellType, list)


def closing_edge(statements: Statements, links: Sequence[Link]) -> tuple[Keeper | None, str]:
    """The statement that closes a circle, and the name of the edge to make weak."""
    candidates: list[tuple[int, Keeper, str]] = []
    for index, link in enumerate(links):
        holder = links[index - 1].value  # of the first, the last: it is a circle
        if is_hook_name(link.name):
            functions = _functions_in(links)
            registrations = (statements.registration(code) for code in functions)
            registered = next(filter(None, registrations), None)
            if registered is not None:
                return registered, f"{functions[0].co_name} ({link.name})"
        if link.how not in _WRITTEN_EDGES:
            continue
        before = Link("other", "", holder, -1)
        keeper = statements.keeper(Chain(None, (before, link)), link.value, is_graph=False)
        if keeper is not None:
            candidates.append((_edge_score(link, keeper), keeper, _edge_name(link, holder)))
    if not candidates:
        return None, ""
    _, keeper, name = max(candidates, key=lambda candidate: candidate[0])
    return keeper, name


def _functions_in(links: Sequence[Link]) -> list[types.CodeType]:
    codes = (code_of(link.value) for link in links)
    return [code for code in codes if code is not None]


def _edge_score(link: Link, keeper: Keeper) -> int:
    """How well an edge suits to be the weak one."""
    points = 20 if link.how == "attribute" else 0
    if link.name.lower().strip("_") in BACK_NAMES:
        points += 50
    return keeper.score + points


def _edge_name(link: Link, holder: Any) -> str:
    code = holder.f_code if type(holder) is types.FrameType else code_of(holder)
    owner = class_path(type(holder)) if code is None else code.co_name
    return f"{owner}.{link.name}" if link.name else owner
