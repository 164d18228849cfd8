"""What grew: live bytes by the step that they were born in, gathered at the object where steps pile
up.

A leak is what *every* stretch of the run left behind and nobody gave back: births from the first
steps after warm-up to the last, at a steady pace. What stopped is a cache that has filled; what has
no old births is emptied now and then (an epoch's metrics, a ring) or has only just begun; what all
came at once is state.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import median
from typing import Any

from vramlens.live.growth.births import BEFORE, Births
from vramlens.live.growth.looks import Looks
from vramlens.live.growth.pace import ALIKE, FEWEST, Pace, gaps_of, pace_of
from vramlens.live.growth.stores import is_namespace, is_store_of_stores
from vramlens.live.heap.ancestors import Ancestors
from vramlens.live.heap.objects import is_kind
from vramlens.live.heap.search import Search
from vramlens.live.heap.tensors import Storage

_SHARE_SPREAD, _CALL_OF_ITS_OWN = 0.4, 0.8
"""Of the steps, that left something: from there on, variables of many threads are one pile (a quarter
are also two pools that took turns); or of fewer, each of which left a thread of its own.
"""
_NEARLY_ALL, _MOST_OF_IT = 0.95, 0.75
"""Shares of the steps (one of 20 may be the last, short batch) and of the bytes (half is one of two)."""
_NEW_PARTS = 0.25
"""Of an object's parts, that may be new in the second half where the parts are what grows. With half,
a dict that gets a list in each step would pass; with none, one new user would make it the dict.
"""
_HOPS_TO_OWN_KIND = 4
"""From a node of a tree to the next: its attributes, their list or dict, the next one's attributes. With
two, a tree with a list of children would be taken apart.
"""


@dataclass(frozen=True, slots=True)
class Item:
    """Something that is alive: a storage, or an autograd node (of no bytes).

    Attributes:
        position: where the search reached it.
        size_bytes: of the storage, each once; 0 for a node.
        born: the step; BEFORE; None where it cannot be told.
        storage: None for a node.
        is_seen: whether its birth was seen; else it is that of what holds it.
    """

    position: int
    size_bytes: int
    born: int | None
    storage: Storage | None
    is_seen: bool = True


@dataclass(slots=True)
class Pile:
    """Items that one object keeps, directly or below it.

    Attributes:
        position: the object, in the search's order.
        items: what was born while it was watched.
        pace: how they came.
        is_remade: of a tensor that grows by being made anew: sizes are in ``pace`` only.
        is_backlog: its oldest went, and it still grew: ``pace`` is of the difference.
        is_cut: of a graph whose oldest nodes were not looked at; a counter rose from the start.
        is_rising: it is what the sums of live bytes or a counter rose by, at each of them.
        is_turning: as much goes as comes, of its sizes or by a counter.
        is_complete: its object has an entry of each step.
        is_in_parts: the object's parts grow, as the lists of a dict do, and few are new.
        is_spread: of one variable of a function that runs many times at once (in threads, in
            itself): the object is what one of them holds.
        is_of_new_calls: it is spread, and each step that left something began a call that goes on.
        is_parameter_state: what training makes once for each parameter, all older than the watch.
        is_in_use: its older entries are still written to.
        is_of_few: fewer steps left something in its object than are needed to speak of growth.
    """

    position: int
    items: list[Item]
    pace: Pace
    is_remade: bool = False
    is_spread: bool = False
    is_of_new_calls: bool = False
    is_backlog: bool = False
    is_cut: bool = False
    is_rising: bool = False
    is_turning: bool = False
    is_complete: bool = False
    is_in_parts: bool = False
    is_parameter_state: bool = False
    is_in_use: bool = False
    is_of_few: bool = False

    @property
    def bytes(self) -> int:
        return sum(item.size_bytes for item in self.items)

    @property
    def span(self) -> int:
        """Steps from the first that left something to the last."""
        return self.pace.last - self.pace.first + 1

    @property
    def usual_gap(self) -> float:
        """Steps from one that left something to the next."""
        gaps = gaps_of(self._born_steps)
        return median(gaps) if gaps else 0

    @property
    def whole_steps(self) -> int:
        """The steps that left something, where all of it is there: as much of each, at even
        distances; 0 elsewhere.
        """
        if self.is_turning:
            return 0
        if self.is_complete:
            return self.span
        if self.is_remade or not self.pace.is_sure:
            return 0
        sizes = bytes_by_birth(self.items).values()
        usual_size = median(sizes)
        as_large = sum(abs(size - usual_size) <= ALIKE * usual_size for size in sizes)
        gaps, usual = gaps_of(self._born_steps), self.usual_gap
        as_far = sum(gap <= usual for gap in gaps)
        share = min(as_large / len(sizes), as_far / len(gaps))
        return self.pace.steps if share >= _NEARLY_ALL else 0

    @property
    def storages(self) -> list[Storage]:
        return [item.storage for item in self.items if item.storage is not None]

    @property
    def storage_births(self) -> list[int]:
        """The step of birth of each storage that was seen."""
        return [item.born for item in self.items if item.storage is not None and item.born]

    @property
    def _born_steps(self) -> list[int]:
        return sorted({item.born for item in self.items if item.born is not None})


@dataclass(slots=True, eq=False)
class _Node:
    """An object on the way from a root to items; ``unseen_bytes`` below it are of unknown births."""

    position: int
    unseen_bytes: int = 0
    below: list[_Node] = field(default_factory=list)
    direct_items: list[Item] = field(default_factory=list)
    bytes_by_step: dict[int, int] = field(default_factory=dict)
    pace: Pace | None = None

    @property
    def is_steady(self) -> bool:
        return self.pace is not None and self.pace.is_steady

    def children(self, *, steady: bool) -> list[_Node]:
        """Those directly below at which items come steadily, or the others."""
        return [child for child in self.below if child.is_steady is steady]

    @property
    def is_uneven(self) -> bool:
        """Whether items come steadily, but not at each of what is directly below."""
        return self.is_steady and bool(self.children(steady=False))

    def apart_from(self, child: _Node) -> list[int]:
        """The steps in which items came that are not below a child."""
        inside = child.bytes_by_step
        return [step for step, size in self.bytes_by_step.items() if size > inside.get(step, -1)]

    def all_items(self) -> list[Item]:
        """Its own items and all below."""
        items: list[Item] = []
        waiting = [self]
        while waiting:
            node = waiting.pop()
            items += node.direct_items
            waiting += node.below
        return items


def live_items(
    search: Search, births: Births, positions: Mapping[int, tuple[int, str]]
) -> list[Item]:
    """All live storages and autograd nodes that a search reached.

    Args:
        positions: the parents of everything in it (``Search.parents``).
    """
    order = search.order
    items = []
    for storage, position in search.storages.items():
        parent, label = positions.get(position, (-1, ""))
        saved_by = order[parent] if label.startswith("._saved") else None
        born = births.born(storage, order[position], saved_by)
        is_seen = born is not None
        if not is_seen and label == ".grad" and parent in search.storage_at:
            # A gradient that Python never looked at; it is as old as what was made to get it, or a
            # little younger.
            born = births.born(search.storage_at[parent], order[parent]) or None
        items.append(Item(position, storage.size_bytes, born, storage=storage, is_seen=is_seen))
    return [*items, *_node_items(search, births)]


def _node_items(search: Search, births: Births) -> Iterator[Item]:
    """Yields the autograd nodes that were born while they were watched."""
    for position in search.graph_nodes():
        born = births.step_of(search.order[position])
        if born is not None and born > BEFORE:
            yield Item(position, 0, born, None)


def piles(
    search: Search,
    items: Sequence[Item],
    parents: Mapping[int, tuple[int, str]],
    steps: int,
    looks: Looks,
) -> tuple[list[Pile], list[Pile]]:
    """The objects at which steps pile up; and those at which they did, or may: late or ended.

    Args:
        steps: how many steps have ended.
        looks: at births.
    """
    nodes = _nodes_on_the_way(search, items, parents)
    tops = [node for node in nodes.values() if parents[node.position][0] < 0]
    _sum_upwards(tops, steps, looks)
    growing, waiting = _spread(search, tops, steps, looks)
    doubtful: list[Pile] = []
    while waiting:
        node = waiting.pop()
        pile_of_stores = _pile_of_stores(search, node, parents)
        if pile_of_stores is not None:
            growing.append(pile_of_stores)
            continue
        if node.pace is not None and node.is_steady and _is_chain(node):
            growing.append(Pile(node.position, node.all_items(), node.pace))
            continue
        waiting += node.children(steady=True)
        pile, stores = _pile_beside_steady(search, node, parents, steps, looks)
        waiting += stores
        if pile is not None:
            (growing if pile.pace.is_steady else doubtful).append(pile)
    return growing, doubtful


def _pile_beside_steady(
    search: Search,
    node: _Node,
    parents: Mapping[int, tuple[int, str]],
    steps: int,
    looks: Looks,
) -> tuple[Pile | None, list[_Node]]:
    """What an object keeps beside its steady parts, as one pile; and those of its parts that are
    judged by themselves: a list that began late, a ring, each store in a namespace.
    """
    parts = node.children(steady=False)
    stores = [part for part in parts if part.pace is not None]
    pile = _pile_of(node, parts, steps, looks)
    is_steady = pile is not None and pile.pace.is_steady
    are_apart = is_namespace(search, node.position, parents) and not _is_of_own_kind(
        search, node, parents
    )
    if not stores:
        return (_pile_of_few(pile, parts) if are_apart else pile), []
    if pile is not None and is_steady:
        store = _store_of_nearly_all(pile, stores, are_apart=are_apart)
        if store is not None:
            return replace(pile, position=store.position), []
        if not are_apart:
            return pile, []
    if not are_apart:
        return None, stores
    pile = _pile_of(node, [part for part in parts if part.pace is None], steps, looks)
    return (pile if pile is not None and pile.pace.is_steady else None), stores


def _pile_of(node: _Node, parts: Sequence[_Node], steps: int, looks: Looks) -> Pile | None:
    """What an object holds itself and what some of its parts keep; None where no pace can be told."""
    items = [*node.direct_items, *chain.from_iterable(map(_Node.all_items, parts))]
    elsewhere = sum(child.unseen_bytes for child in node.below if child not in parts)
    pace = pace_of(bytes_by_birth(items), steps, looks, node.unseen_bytes - elsewhere)
    return None if pace is None else Pile(node.position, items, pace)


def _pile_of_few(pile: Pile | None, parts: Iterable[_Node]) -> Pile | None:
    """What a namespace keeps, none of whose parts has a pace by itself: new names, each with one
    thing; or the largest store, without the variables beside it that were set anew.
    """
    stores = [part for part in parts if len(part.bytes_by_step) > 1]
    if pile is None or not stores:
        return pile
    store = max(stores, key=lambda part: sum(part.bytes_by_step.values()))
    first, *later = sorted(store.bytes_by_step)
    added = sum(store.bytes_by_step[step] for step in later)
    pace = replace(pile.pace, bytes_per_step=round(added / (later[-1] - first)))
    return Pile(_innermost(store).position, store.all_items(), pace, is_of_few=True)


def _innermost(node: _Node) -> _Node:
    """The last object on the way that all goes through."""
    while len(node.below) == 1 and not node.direct_items:
        (node,) = node.below
    return node


def _store_of_nearly_all(pile: Pile, parts: Iterable[_Node], *, are_apart: bool) -> _Node | None:
    """The part that holds nearly all of what an object keeps, as a list does but for the newest,
    which an attribute beside it holds; None without one.

    Args:
        are_apart: whether the parts are stores of their own: then the rest must be the newest.
    """
    for part in parts:
        if not pile.bytes or sum(part.bytes_by_step.values()) < _MOST_OF_IT * pile.bytes:
            continue
        last = max(part.bytes_by_step)
        bytes_beside_part = Counter(bytes_by_birth(pile.items))
        bytes_beside_part.subtract(part.bytes_by_step)
        if not are_apart or all(step > last for step, size in bytes_beside_part.items() if size):
            return part
    return None


def _is_of_own_kind(search: Search, node: _Node, parents: Mapping[int, tuple[int, str]]) -> bool:
    """Whether what an object holds are objects of its own class: a tree or a linked list is one
    store, however its branches grow.
    """
    owner = search.order[node.position]
    if type(owner) in (dict, tuple) and parents[node.position][0] >= 0:
        owner = search.order[parents[node.position][0]]
    kind = _kind_of(owner)
    if is_kind(owner, dict, tuple, type):
        return False
    level = [node]
    for _ in range(_HOPS_TO_OWN_KIND):
        level = list(chain.from_iterable(part.below for part in level))
        if any(_kind_of(search.order[part.position]) == kind for part in level):
            return True
    return False


def _kind_of(owner: Any) -> Any:
    """What two parts of one structure have in common: the class, or the code of a closure."""
    return owner.__code__ if type(owner) is types.FunctionType else type(owner)


def _is_chain(node: _Node) -> bool:
    """Whether an object holds a new thing and the one before it, which does the same, and so on:
    all of them are what the first keeps, though each further one seems to have stopped.
    """
    links = 0
    while node.below and links < FEWEST:
        before = max(node.below, key=lambda child: sum(child.bytes_by_step.values()))
        steps = node.apart_from(before)
        if not steps and not links:
            return False  # it only leads there
        if steps:
            inside = before.bytes_by_step
            if min(steps) < max(inside) or 2 * sum(inside.values()) < sum(
                node.bytes_by_step.values()
            ):
                return False
            links += min(steps) > max(inside)  # else one look saw two of them
        node = before
    return links >= FEWEST


def _pile_of_stores(
    search: Search, node: _Node, parents: Mapping[int, tuple[int, str]]
) -> Pile | None:
    """All that is below a container of containers, some of which only seem to have stopped; None
    for anything else.
    """
    parts = [child.position for child in node.below]
    if node.pace is None or not node.is_uneven:
        return None
    if not is_store_of_stores(search, node.position, parts, parents):
        return None
    return Pile(node.position, node.all_items(), node.pace, is_in_parts=_parts_grow(node))


def _parts_grow(node: _Node) -> bool:
    """Whether what an object has grows, instead of its number: most of it was there early, and got
    something in several steps.
    """
    begins = [min(part.bytes_by_step) for part in node.below if part.bytes_by_step]
    growing = sum(len(part.bytes_by_step) >= FEWEST for part in node.below)
    if 2 * growing < len(begins):
        return False
    middle = (min(node.bytes_by_step) + max(node.bytes_by_step)) / 2
    late = sum(begin > middle for begin in begins)
    return late <= _NEW_PARTS * len(begins)


def _nodes_on_the_way(
    search: Search, items: Sequence[Item], parents: Mapping[int, tuple[int, str]]
) -> dict[int, _Node]:
    """Every object on the way from a root to what was born while it was watched, by position."""
    nodes: dict[int, _Node] = {}
    entries = _entries(search, parents)
    for item in items:
        if item.born is not None and item.born > BEFORE:
            entry = entries.nearest(item.position)
            nodes.setdefault(entry, _Node(entry)).direct_items.append(item)
    waiting = sorted(nodes, reverse=True)
    while waiting:
        above = []
        for position in waiting:
            parent = parents[position][0]
            if parent < 0:
                continue
            if parent not in nodes:
                nodes[parent] = _Node(parent)
                above.append(parent)
            nodes[parent].below.append(nodes[position])
        waiting = above
    around_items = Ancestors(parents, nodes.__contains__)
    for item in items:
        if item.born is None and item.storage is not None:
            around = around_items.nearest(item.position)
            if around >= 0:
                nodes[around].unseen_bytes += item.size_bytes
    return nodes


def _sum_upwards(tops: list[_Node], steps: int, looks: Looks) -> None:
    """Gives every object the bytes below it, by step of birth, and their pace."""
    downwards = list(tops)
    for node in downwards:
        downwards += node.below
    for node in reversed(downwards):
        is_way_only = len(node.below) == 1 and not node.direct_items and not node.unseen_bytes
        node.unseen_bytes += sum(child.unseen_bytes for child in node.below)
        if is_way_only:
            child = node.below[0]
            node.bytes_by_step, node.pace = child.bytes_by_step, child.pace
            continue
        total = Counter(bytes_by_birth(node.direct_items))
        for child in node.below:
            total.update(child.bytes_by_step)
        node.bytes_by_step = dict(total)
        node.pace = pace_of(node.bytes_by_step, steps, looks, node.unseen_bytes)


def _spread(
    search: Search, tops: list[_Node], steps: int, looks: Looks
) -> tuple[list[Pile], list[_Node]]:
    """Piles of one variable of a function that runs many times at once; and the tops that are
    not part of any.
    """
    spread: list[Pile] = []
    taken: set[_Node] = set()
    for nodes in _tops_by_variable(search, tops):
        items = list(chain.from_iterable(node.all_items() for node in nodes))
        pace = pace_of(bytes_by_birth(items), steps, looks)
        if pace is None or not pace.is_steady:
            continue
        are_new, first = len(nodes) >= _CALL_OF_ITS_OWN * pace.steps, nodes[0].position
        if pace.filled >= _SHARE_SPREAD or are_new:
            spread.append(Pile(first, items, pace, is_spread=True, is_of_new_calls=are_new))
            taken.update(nodes)
    return spread, [node for node in tops if node not in taken]


def _tops_by_variable(search: Search, tops: Iterable[_Node]) -> list[list[_Node]]:
    """The roots that are the same variable of several calls of a function."""
    by_variable: dict[Any, list[_Node]] = {}
    for node in tops:
        root = search.roots.get(node.position)
        if root is not None and root.kind == "variable" and not node.is_steady:
            by_variable.setdefault((root.code, root.name), []).append(node)
    return [nodes for nodes in by_variable.values() if len(nodes) >= FEWEST]


def _entries(search: Search, parents: Mapping[int, tuple[int, str]]) -> Ancestors:
    """Where the ways to items leave Python's own references for an autograd graph; the items
    themselves otherwise.
    """
    return Ancestors(parents, lambda place: not search.in_graph(place) or parents[place][0] < 0)


def bytes_by_birth(items: Iterable[Item]) -> dict[int, int]:
    """Bytes by the step that they were born in, without those that nobody saw."""
    by_step: dict[int, int] = {}
    for item in items:
        if item.born is not None:
            by_step[item.born] = by_step.get(item.born, 0) + item.size_bytes
    return by_step
