"""Circles: objects that hold each other, as a shortest way round with the edge to make weak."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vramlens.live.heap.objects import class_path, code_of
from vramlens.live.heap.search import Search
from vramlens.live.holder.chain import Chain, Link, link_between
from vramlens.live.holder.keeper import Keeper, Statements

_MOST_STARTS = 50
_SHORT_CIRCLE = 4
_BACK_NAMES = (
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


def components(below: Sequence[Sequence[int]]) -> tuple[list[int], dict[int, list[int]]]:
    """Tarjan's strongly connected components without recursion: of each object its number;
    members of the circles.
    """
    count = len(below)
    number, low = [-1] * count, [0] * count
    on_stack = bytearray(count)
    component = [-1] * count
    members: dict[int, list[int]] = {}
    stack: list[int] = []
    clock = groups = 0
    for start in range(count):
        if number[start] >= 0:
            continue
        work: list[tuple[int, Iterator[int]]] = [(start, iter(below[start]))]
        number[start] = low[start] = clock
        clock += 1
        stack.append(start)
        on_stack[start] = 1
        while work:
            here, children = work[-1]
            deeper = next(
                (child for child in children if _visit(child, here, number, low, on_stack)), None
            )
            if deeper is not None:
                number[deeper] = low[deeper] = clock
                clock += 1
                stack.append(deeper)
                on_stack[deeper] = 1
                work.append((deeper, iter(below[deeper])))
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[here])
            if low[here] == number[here]:
                inside = []
                while True:
                    member = stack.pop()
                    on_stack[member] = 0
                    component[member] = groups
                    inside.append(member)
                    if member == here:
                        break
                if len(inside) > 1 or here in below[here]:
                    members[groups] = inside
                groups += 1
    return component, members


def _visit(child: int, here: int, number: list[int], low: list[int], on_stack: bytearray) -> bool:
    """Whether a child is new; one that is being visited closes a circle."""
    if number[child] < 0:
        return True
    if on_stack[child]:
        low[here] = min(low[here], number[child])
    return False


def circle_in(
    below: Sequence[Sequence[int]], labels: Mapping[tuple[int, int], str], members: Sequence[int]
) -> tuple[int, ...]:
    """A shortest circle in a component, through a gradient if one of it is in there."""
    inside = set(members)
    gradients = [
        pair for pair, label in labels.items() if label == ".grad" and inside.issuperset(pair)
    ]
    if gradients:
        holder, gradient = gradients[0]
        back = _way(below, gradient, holder, inside)
        if back:
            return (holder, *back[:-1])
    best: tuple[int, ...] = ()
    for start in members[:_MOST_STARTS]:
        for child in below[start]:
            if child in inside:
                back = (start,) if child == start else _way(below, child, start, inside)
                if back and (not best or len(back) < len(best)):
                    best = back
        if best and len(best) <= _SHORT_CIRCLE:
            break
    return (best[-1], *best[:-1]) if best else (members[0],)


def _way(below: Sequence[Sequence[int]], start: int, end: int, inside: set[int]) -> tuple[int, ...]:
    """The shortest way from one object to another, both included; empty where there is none."""
    came = {start: -1}
    waiting = [start]
    for here in waiting:
        if here == end:
            path = [here]
            while came[path[-1]] >= 0:
                path.append(came[path[-1]])
            return tuple(path[::-1])
        for child in below[here]:
            if child in inside and child not in came:
                came[child] = here
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
        taken, how, name = link_between(
            search, [objects[place] for place in turned[index : index + 5]], label
        )
        index = min(index + taken, len(turned) - 1)
        links.append(Link(how, name, objects[turned[index]], turned[index]))
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


def closing_edge(
    search: Search, statements: Statements, links: Sequence[Link]
) -> tuple[Keeper | None, str]:
    """The statement that closes a circle, and the name of the edge to make weak."""
    candidates: list[tuple[int, Keeper, str]] = []
    for index, link in enumerate(links):
        holder = links[index - 1].value if index else links[-1].value
        if "hook" in link.name:
            functions = [code for one in links if (code := code_of(one.value)) is not None]
            registered = next(
                (found for code in functions if (found := statements.registration(code))), None
            )
            if registered is not None:
                return registered, f"{functions[0].co_name} ({link.name})"
        if link.how not in ("attribute", "closure", "class attribute", "key", "variable"):
            continue
        before = Link("other", "", holder, -1)
        keeper = statements.keeper(Chain(None, (before, link)), link.value, is_graph=False)
        if keeper is None:
            continue
        kind = holder.f_code if type(holder) is types.FrameType else code_of(holder)
        owner = class_path(type(holder)) if kind is None else kind.co_name
        name = f"{owner}.{link.name}" if link.name else owner
        score = keeper.score + (50 if link.name.lower().strip("_") in _BACK_NAMES else 0)
        score += 20 if link.how == "attribute" else 0
        candidates.append((score, keeper, name))
    if not candidates:
        return None, ""
    _, keeper, name = max(candidates, key=lambda one: one[0])
    del search
    return keeper, name
