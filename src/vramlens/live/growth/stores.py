"""Of two containers that hold the same things, the one that keeps them.

The search names the holder that it came by first, the one nearest to a root: that may be a batch
drawn from a replay buffer, or the last entries of a log. The larger container that holds all of
them too is their store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

from vramlens.capture.process.tracked_objects import referrer_ids
from vramlens.live.heap.objects import is_kind, length_of, namespace_of
from vramlens.live.heap.search import Search

if TYPE_CHECKING:
    from vramlens.live.growth.piles import Pile

_KINDS = (list, tuple, dict, deque, set, frozenset)
_MOST_PICKS = 64
"""Parts that are looked for in each other container: of a pick that is not from it, the first few
are missing; all would take the product of two lengths.
"""
_MOST_VARIABLES = 8
"""Tensors that are looked for behind what seems to have stopped: each reads the heap once (0.04 s for
two million objects). A step's functions have a few.
"""
_FEWEST_PARTS = 4
"""Of a table of lists that is one store. Two (train and test) are two things that somebody named;
eight would judge the lists of six layers apart.
"""
_EVERY_STEP = 0.9
"""Of the steps: what holds so many is no pick from another. A draw of 45 of 50 would be the store with
a lower bar; with all, the store of a run with one failed step would not be one.
"""

Parents = Mapping[int, tuple[int, str]]


def is_store_of_stores(
    search: Search, position: int, parts: Sequence[int], parents: Parents
) -> bool:
    """Whether a container's parts are of one kind, so that what they keep is its: a list for each
    key. Attributes and globals are not parts of one thing.
    """
    container = search.order[position]
    if len(parts) < _FEWEST_PARTS or not is_kind(container, *_KINDS):
        return False
    kinds = {type(search.order[part]) for part in parts}
    if len(kinds) > 1 or not issubclass(kinds.pop(), _KINDS):
        return False
    holder = parents[position][0]
    is_namespace = holder < 0 or namespace_of(search.order[holder]) is container
    return not is_namespace


def parents_by_store(search: Search, piles: Iterable[Pile], parents: Parents) -> Parents | None:
    """The parents with what stores keep below these; None where they are so already."""
    picked: dict[int, list[int]] = {
        pile.position: [] for pile in piles if _may_be_a_pick(search, pile)
    }
    if not picked:
        return None
    for position, (parent, _) in parents.items():
        if parent in picked:
            picked[parent].append(position)
    stores = _stores(search, picked)
    if not stores:
        return None
    by_store = {**search.parents(stores.values()), **parents}
    for pick, store in stores.items():
        if _is_apart(search, store, {pick, *picked[pick]}, by_store):
            by_store.update(dict.fromkeys(picked[pick], (store, "")))
    return by_store


def parents_beside_variables(
    search: Search, piles: Iterable[Pile], parents: Parents
) -> Parents | None:
    """The parents with a tensor that a variable holds, for the moment, below what keeps it too and
    seems to have stopped; None where they are so already.
    """
    stopped = [pile for pile in piles if not pile.pace.is_steady and not pile.pace.is_late]
    roots = {search.path(pile.position, parents)[0] for pile in stopped}
    moved: dict[int, tuple[int, str]] = {}
    by_holder = dict(parents)
    tensors = _tensors_of_variables(search, parents) if stopped else []
    for place, holders in zip(tensors, _holders(search, tensors), strict=True):
        for holder in holders:
            above = search.parents([holder])
            way = search.path(holder, above)
            if way[0] in roots and place not in way:
                by_holder.update({**above, **parents})
                moved[place] = (holder, "")
                break
    by_holder.update(moved)
    return by_holder if moved and all_lead_to_roots(by_holder, moved) else None


def _tensors_of_variables(search: Search, parents: Parents) -> list[int]:
    """The positions of tensors that grew and that variables of functions hold themselves."""
    tensors = [
        place
        for place, (parent, _) in parents.items()
        if parent < 0
        and search.roots[place].kind == "variable"
        and search.torch.is_tensor(search.order[place])
    ]
    return tensors[:_MOST_VARIABLES]


def _holders(search: Search, places: Sequence[int]) -> list[list[int]]:
    """Of each of some objects, the positions of what else holds it, as far as it was reached."""
    holder_ids = [referrer_ids((search.order[place],)) for place in places]
    ids = set().union(*holder_ids)
    is_holder = map(ids.__contains__, map(id, search.order)) if ids else ()
    reached = list(compress(range(len(search.order)), is_holder))
    return [[place for place in reached if id(search.order[place]) in of] for of in holder_ids]


def parents_with_all_parts(
    search: Search, piles: Iterable[Pile], parents: Parents
) -> Parents | None:
    """The parents with every part of a container that seems to have stopped below it, also those
    that a shorter list of its best or latest parts holds; None where they are so already.
    """
    places = {id(search.order[place]): place for place in parents}
    moved: dict[int, tuple[int, str]] = {}
    for pile in piles:
        if not pile.pace.is_steady and not pile.pace.is_late:
            strangers = _parts_elsewhere(search, pile, places, parents)
            moved.update(dict.fromkeys(strangers, (pile.position, "")))
    by_store = {**parents, **moved}
    return by_store if moved and all_lead_to_roots(by_store, moved) else None


def _parts_elsewhere(
    search: Search, pile: Pile, places: Mapping[int, int], parents: Parents
) -> Iterator[int]:
    """Yields the positions of a container's parts that a variable or a shorter one holds, too."""
    container = search.order[pile.position]
    if not is_kind(container, *_KINDS):
        return
    way = set(search.path(pile.position, parents))
    for part in _ids_in(container):
        place = places.get(part, -1)
        is_elsewhere = place >= 0 and place not in way
        if is_elsewhere and _is_shorter(search, parents[place][0], container):
            yield place


def _is_shorter(search: Search, holder: int, container: Any) -> bool:
    """Whether a holder is a variable, or a container with fewer parts."""
    if holder < 0:
        return True
    other = search.order[holder]
    is_container = is_kind(other, *_KINDS)
    return is_container and (length_of(other) or 0) < (length_of(container) or 0)


def all_lead_to_roots(parents: Parents, places: Iterable[int]) -> bool:
    """Whether the ways up from some places end: what was moved may lie below itself."""
    proven: set[int] = set()
    for start in places:
        way: set[int] = set()
        place = start
        while place >= 0 and place not in proven:
            if place in way:
                return False
            way.add(place)
            place = parents[place][0]
        proven |= way
    return True


def _stores(search: Search, picked: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """For each pick the position of its store, where there is one."""
    containers = _containers(search)
    stores: dict[int, int] = {}
    for pick, positions in picked.items():
        store = _store_of(search, containers, pick, positions) if positions else None
        if store is not None:
            stores[pick] = store
    return stores


def _may_be_a_pick(search: Search, pile: Pile) -> bool:
    is_container = is_kind(search.order[pile.position], *_KINDS)
    return is_container and not pile.is_remade and pile.pace.filled < _EVERY_STEP


def _containers(search: Search) -> list[int]:
    kinds = set(map(id, _KINDS))
    is_container = map(kinds.__contains__, map(id, map(type, search.order)))
    return list(compress(range(len(search.order)), is_container))


def _store_of(
    search: Search, containers: Sequence[int], pick: int, picked: Sequence[int]
) -> int | None:
    """The position of the largest container that holds all of some things that a pick holds."""
    picked_ids = {id(search.order[position]) for position in picked[:_MOST_PICKS]}
    first = next(iter(picked_ids))
    longest = length_of(search.order[pick]) or 0
    store = None
    for position in containers:
        candidate = search.order[position]
        if len(candidate) <= longest or first not in _ids_in(candidate):
            continue
        if picked_ids.issubset(_ids_in(candidate)):
            store, longest = position, len(candidate)
    return store


def _ids_in(container: Any) -> Iterator[int]:
    return map(id, container.values() if type(container) is dict else container)


def _is_apart(search: Search, store: int, pick: set[int], parents: Parents) -> bool:
    """Whether the way to a store does not lead through what was picked from it."""
    return pick.isdisjoint(search.path(store, parents))
