"""Of two containers that hold the same things, the one that keeps them.

The search names the holder that it came by first, the one nearest to a root: that may be a batch
drawn from a replay buffer, or the last entries of a log. The larger container that holds all of
them too is their store.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress
from typing import TYPE_CHECKING, Any

from vramlens.capture.process.tracked_objects import referrer_ids
from vramlens.live.heap.objects import attributes_of, is_kind, length_of, namespace_of
from vramlens.live.heap.search import Search

if TYPE_CHECKING:
    from vramlens.live.growth.piles import Pile

_KINDS = (list, tuple, dict, deque, set, frozenset)
_RUNNING = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.FrameType)
_MOST_PICKED = 4096
"""Things that picks hold, whose other holders are looked for in one walk of the heap."""
_HOPS_TO_STORE = 4
"""From a thing to the store of its entries: the entry's dict, the entry, the store. With two, a batch drawn
from a buffer of tuples would be apart from it; with more, all that a trainer has would be one store.
"""
_MOST_VARIABLES = 8
"""Whose holders are looked for behind what seems to have stopped, at once: a step's functions have a few."""
_HOPS_OF_VARIABLES = 3
"""From a variable to the store: of a tensor by its dataset and that one's loader to the list of loaders. A
fourth reads the heap once more for what is hardly ever there.
"""
_FEWEST_PARTS = 4
"""Of a table of lists that is one store. Two (train and test) are two things that somebody named;
eight would judge the lists of six layers apart.
"""
_EVERY_STEP = 0.9
"""Of the steps: what holds so many is not a pick from another. A draw of 45 of 50 would be the store with
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
    return parents[position][0] >= 0 and not is_namespace(search, position, parents)


def is_namespace(search: Search, position: int, parents: Parents) -> bool:
    """Whether what an object holds are things apart, each with its name: the variables of a module,
    class, closure or running function, the attributes of an object.
    """
    container, holder = search.order[position], parents[position][0]
    if not is_kind(container, *_KINDS):
        return type(container) in _RUNNING or bool(attributes_of(container))
    if holder < 0:
        root = search.roots.get(position)
        return root is not None and root.kind == "module"
    owner = search.order[holder]
    if type(owner) is types.FunctionType:
        return owner.__closure__ is container
    is_class_dict = is_kind(owner, type) and type(container) is dict
    return is_class_dict or namespace_of(owner) is container


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
    holders = _holders(search, list(chain.from_iterable(picked.values()))[:_MOST_PICKED])
    above = search.parents(chain.from_iterable(holders.values()))
    by_store = {**above, **parents}
    is_moved = False
    for pick, positions in picked.items():
        moved = _moved_to_store(search, pick, {at: holders.get(at, ()) for at in positions}, above)
        ways = chain.from_iterable(search.path(holder, by_store) for holder, _ in moved.values())
        if moved and not {pick, *positions} & set(ways):
            by_store.update(moved)
            is_moved = True
    return by_store if is_moved else None


def parents_beside_variables(
    search: Search, piles: Iterable[Pile], parents: Parents
) -> Parents | None:
    """The parents with what a variable holds, for the moment, below what keeps it too and seems to
    have stopped; None where they are so already.
    """
    stopped = [pile for pile in piles if not pile.pace.is_steady and not pile.pace.is_late]
    ways = _WaysToStores(search, {pile.position for pile in stopped})
    if stopped:
        ways.climb(_variables_on_the_way(search, parents))
    moved = ways.moved()
    by_holder = {**ways.above, **parents, **moved}
    return by_holder if moved and all_lead_to_roots(by_holder, moved) else None


def _variables_on_the_way(search: Search, parents: Parents) -> list[int]:
    """The positions of variables' objects that lead to tensors: first those that are tensors."""
    variables = [
        place
        for place in parents
        if place in search.roots and search.roots[place].kind == "variable"
    ]
    tensors = [place for place in variables if search.torch.is_tensor(search.order[place])]
    other_variables = [
        place for place in variables if not search.torch.is_tensor(search.order[place])
    ]
    return [*tensors[:_MOST_VARIABLES], *other_variables[:_MOST_VARIABLES]]


class _WaysToStores:
    """Ways from what variables hold up to stores: a dataset, its loader, the list of loaders, each
    of which a variable holds, too.

    Attributes:
        above: the parents of every holder on these ways.
    """

    def __init__(self, search: Search, stores: set[int]) -> None:
        self._search = search
        self._stores = stores
        self.above: dict[int, tuple[int, str]] = {}
        self._leads: dict[int, list[tuple[int, int]]] = {}
        """Of a variable's object, each holder with the variable by which that is known."""

    def climb(self, places: Sequence[int]) -> None:
        """Looks for the holders of variables' objects, and for the holders of these."""
        for _ in range(_HOPS_OF_VARIABLES):
            for place, holders in _holders(self._search, places).items():
                self._leads[place] = list(self._leads_of(place, holders))
            tops = chain.from_iterable(
                self._leads[place] for place in places if place in self._leads
            )
            further = (top for _, top in tops if top not in self._leads)
            places = list(dict.fromkeys(further))[:_MOST_VARIABLES]
            if not places:
                break

    def moved(self) -> dict[int, tuple[int, str]]:
        """The holders of what is in a store after all, as parents."""
        holders = {place: self._holder_of(place) for place in self._leads}
        return {place: (holder, "") for place, holder in holders.items() if holder is not None}

    def _leads_of(self, place: int, holders: Sequence[int]) -> Iterator[tuple[int, int]]:
        above = self._search.parents(holders)
        for holder in holders:
            way = self._search.path(holder, above)
            if place not in way:
                self.above.update(above)
                is_in_store = not self._stores.isdisjoint(way)
                yield holder, -1 if is_in_store else way[0]

    def _holder_of(self, place: int, hops: int = _HOPS_OF_VARIABLES) -> int | None:
        """The holder of a variable's object on the way to a store; None without one."""
        for holder, top in self._leads.get(place, ()):
            if top < 0 or (hops > 1 and self._holder_of(top, hops - 1) is not None):
                return holder
        return None


def _holders(search: Search, places: Sequence[int]) -> dict[int, list[int]]:
    """Of each of some objects, the positions of what holds it, as far as it was reached."""
    by_id = {id(search.order[place]): place for place in places}
    ids = referrer_ids(map(search.order.__getitem__, places)) if places else set()
    is_holder = map(ids.__contains__, map(id, search.order))
    holders: dict[int, list[int]] = {}
    for holder in compress(range(len(search.order)), is_holder) if ids else ():
        referents = map(id, search.referents.of_one(search.order[holder]))
        for referent in set(referents) & by_id.keys():
            holders.setdefault(by_id[referent], []).append(holder)
    return holders


def parents_with_all_parts(
    search: Search, piles: Iterable[Pile], parents: Parents
) -> Parents | None:
    """The parents with every part of a container that seems to have stopped below it, also those
    that its best or latest owners, or a shorter list of them, hold; None where they are so already.
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
    """Yields the positions of a container's parts that a variable, an attribute or a shorter one holds,
    too.
    """
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
    """Whether a holder is a variable, an attribute, or a container with fewer parts."""
    if holder < 0:
        return True
    other = search.order[holder]
    if is_kind(other, *_KINDS):
        return (length_of(other) or 0) < (length_of(container) or 0)
    return bool(attributes_of(other))


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


def _may_be_a_pick(search: Search, pile: Pile) -> bool:
    is_container = is_kind(search.order[pile.position], *_KINDS)
    return is_container and not pile.is_remade and pile.pace.filled < _EVERY_STEP


def _moved_to_store(
    search: Search, pick: int, holders: Mapping[int, Sequence[int]], above: Parents
) -> dict[int, tuple[int, str]]:
    """The parents of what a pick holds below the largest container that has all of it, itself or in
    its entries; empty without one.

    Args:
        holders: of each thing that the pick holds, what holds it.
        above: the parents of these holders.
    """
    by_store: list[dict[int, int]] = [
        {
            store: holder
            for holder in held_by
            for store in search.path(holder, above)[-_HOPS_TO_STORE:]
            if store != pick
        }
        for held_by in holders.values()
    ]
    if not by_store:
        return {}
    common = set(by_store[0]).intersection(*by_store)
    lengths = {
        store: length_of(search.order[store]) or 0
        for store in common
        if not is_namespace(search, store, above)
    }
    store = max(lengths, key=lambda at: lengths[at], default=-1)
    if store < 0 or lengths[store] <= (length_of(search.order[pick]) or 0):
        return {}
    return {at: (by[store], "") for at, by in zip(holders, by_store, strict=True)}


def _ids_in(container: Any) -> Iterator[int]:
    return map(id, container.values() if type(container) is dict else container)
