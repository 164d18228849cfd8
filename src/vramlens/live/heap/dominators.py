"""Retained bytes: what would go if an object let go, by dominators of the part of the heap that
leads to tensors.

An object dominates what every way from a root passes through it. Only objects on a way to a tensor
are looked at, found backwards from the tensors; the tree is that of Cooper, Harvey and Kennedy, "A
Simple, Fast Dominance Algorithm" (2001).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import thread_time
from typing import Any

from vramlens.capture.process.undisturbed import undisturbed
from vramlens.live.heap.objects import is_kind
from vramlens.live.heap.search import Search

_ENOUGH = 0.8
"""Of what an object retains is in one child: the child is the owner worth naming. With less than half
one of several would be named; with all, an object with a counter beside its list never ends.
"""
_ROOT = -1
_SECONDS = 10.0
_LOOK_AT_THE_CLOCK = 1024  # objects


@dataclass(frozen=True, slots=True)
class Retained:
    """An object and what it alone keeps.

    Attributes:
        position: in the search's order.
        bytes, storages: what would go with it.
        example: something that it keeps.
    """

    position: int
    bytes: int
    storages: int
    example: Any


def retained_by(search: Search) -> list[Retained]:
    """The objects that retain something, none of them inside of another: the largest first. What
    they retain is all that was reached; none where the time ran out.
    """
    with undisturbed(), search.torch.torch._C.DisableTorchFunction():
        end = thread_time() + _SECONDS
        above = _edges(search, end)
    order = sorted(above or ())
    dominator = None if above is None else _dominators(order, above, search, end)
    if dominator is None or above is None:
        search.skipped.append("the largest owners (the heap is too large to compute them in time)")
        return []
    return _apart(search, order, dominator)


def nearest_by(search: Search) -> list[Retained]:
    """The objects by which the search came to storages, none of them inside of another: the
    largest first.

    Each storage counts for one way to it, the first that was found: much quicker than to ask what
    every way passes through, and the same where a storage has one holder.
    """
    parents = search.parents(search.storages.values())
    order = sorted(parents)
    holder = {position: parent for position, (parent, _) in parents.items()}
    return _apart(search, order, holder)


def _apart(search: Search, order: list[int], dominator: dict[int, int]) -> list[Retained]:
    """The objects worth naming in a tree of positions, given by what is above: each storage is
    below one of them, or is one.
    """
    sizes, counts = dict.fromkeys(order, 0), dict.fromkeys(order, 0)
    examples: dict[int, int] = {}
    for storage, position in search.storages.items():
        sizes[position] += storage.size_bytes
        counts[position] += 1
        examples.setdefault(position, position)
    held_directly = {position: (sizes[position], counts[position]) for position in examples}
    children: dict[int, list[int]] = {}
    for position in reversed(order):
        parent = dominator[position]
        children.setdefault(parent, []).append(position)
        if parent != _ROOT:
            sizes[parent] += sizes[position]
            counts[parent] += counts[position]
            examples.setdefault(parent, examples.get(position, position))
    retained: list[Retained] = []
    waiting = children.get(_ROOT, [])
    while waiting:
        position = waiting.pop()
        below = children.get(position, [])
        size, count = sizes[position], counts[position]
        if below and _leads_on(search, position, max(map(sizes.__getitem__, below)), size):
            waiting += below
            size, count = held_directly.get(position, (0, 0))
        if size:
            example = search.order[examples.get(position, position)]
            retained.append(Retained(position, size, count, example))
    return sorted(retained, key=lambda one: -one.bytes)


def _leads_on(search: Search, position: int, largest: int, size: int) -> bool:
    """Whether an object is less worth naming than those below it.

    Args:
        largest: what the largest of these retains.
        size: what it retains itself.
    """
    root = search.roots.get(position)
    if root is not None and root.kind in ("module", "class"):
        return True
    is_container = is_kind(search.order[position], list, tuple, set, frozenset, deque)
    return largest >= _ENOUGH * size and not is_container


def _edges(search: Search, end: float) -> dict[int, list[int]] | None:
    """For every object on a way to a tensor, what holds it; positions, by position. None where
    time ran out.
    """
    holders = _holders(search, end)
    if holders is None:
        return None
    # Saved tensors are made anew at each look: their edge is ours.
    parents = search.parents(search.storages.values())
    for position, (parent, _) in parents.items():
        if parent >= 0 and parent not in holders.get(position, ()):
            holders.setdefault(position, []).append(parent)
    leads: dict[int, list[int]] = {position: [] for position in search.storages.values()}
    waiting = list(leads)
    while waiting:
        position = waiting.pop()
        above = holders.get(position, [])
        leads[position] = above
        for parent in above:
            if parent not in leads:
                leads[parent] = []
                waiting.append(parent)
    return leads


def _holders(search: Search, end: float) -> dict[int, list[int]] | None:
    """For every object but roots, what holds it; None where time ran out."""
    torch, order = search.torch, search.order
    place = dict(zip(map(id, order), range(len(order)), strict=True))
    for position in search.roots:
        place.pop(id(order[position]), None)
    holders: dict[int, list[int]] = {}
    for position, holder in enumerate(order):
        if position % _LOOK_AT_THE_CLOCK == 0 and thread_time() > end:
            return None
        children = set(map(id, search.referents.of_one(holder)))
        if torch.is_tensor(holder) or torch.is_node(holder):
            children.update(id(child) for _, child in torch.held_by_autograd(holder))
        children.discard(id(holder))
        for identity in children:
            child = place.get(identity)
            if child is not None:
                holders.setdefault(child, []).append(position)
    return holders


def _dominators(
    order: list[int], above: dict[int, list[int]], search: Search, end: float
) -> dict[int, int] | None:
    """By position, what every way from a root passes through last. None where time ran out."""
    rank = {position: number for number, position in enumerate(order)}
    inner = [position for position in order if above[position] and position not in search.roots]
    dominator = dict.fromkeys(set(order).difference(inner), _ROOT)
    changed = True
    while changed:
        if thread_time() > end:
            return None
        changed = False
        for position in inner:
            new = _meeting_point(above[position], dominator, rank)
            if new is not None and dominator.get(position) != new:
                dominator[position] = new
                changed = True
    return dict.fromkeys(order, _ROOT) | dominator


def _meeting_point(
    parents: list[int], dominator: dict[int, int], rank: dict[int, int]
) -> int | None:
    """What the ways through all parents pass last, of those that have a dominator already."""
    meeting: int | None = None
    for parent in parents:
        if parent in dominator:
            meeting = parent if meeting is None else _meet(meeting, parent, dominator, rank)
    return meeting


def _meet(a: int, b: int, dominator: dict[int, int], rank: dict[int, int]) -> int:
    while a != b:
        if a == _ROOT or b == _ROOT:
            return _ROOT
        if rank[a] > rank[b]:
            a = dominator[a]
        else:
            b = dominator[b]
    return a
