"""Who holds a tensor: from a prompt, a debugger, a notebook."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import compress
from types import FrameType
from typing import Any

from vramlens.capture.process.tracked_objects import referrer_ids
from vramlens.capture.process.undisturbed import undisturbed
from vramlens.errors import UsageError
from vramlens.foreign_text import text_of
from vramlens.leak.claim import place_text
from vramlens.leak.leak import LeakOwner
from vramlens.live.heap.objects import class_name
from vramlens.live.heap.roots import Root, all_roots
from vramlens.live.heap.search import Search
from vramlens.live.heap.tensors import Storage, loaded
from vramlens.live.holder.chain import Chain, chain_of, root_text
from vramlens.live.holder.keeper import Statements
from vramlens.live.holder.owner import has_no_name, owner_of
from vramlens.schema import SCHEMA
from vramlens.units import counted, format_size

_MOST_OWNERS = 8
"""That are shown: a screen has 24 lines, and each takes two or three."""
_MOST_NODES = 20_000
"""Autograd nodes that are asked for what they saved: several passes of a large model."""
_MOST_LOOKS = 1000
"""Views and detached tensors of one storage whose holders are looked for: the rest is held by the same
few.
"""


@dataclass(frozen=True, slots=True)
class Holders:
    """Who holds a tensor.

    Attributes:
        what: the tensor, as text.
        bytes: of the storage behind it.
        owners: who holds it, the one that a person would want to know of first; the chain leads
            from a root to it.
        notes: what else is to be said.
    """

    what: str
    bytes: int
    owners: tuple[LeakOwner, ...]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As data."""
        return {
            "schema": SCHEMA,
            "what": self.what,
            "bytes": self.bytes,
            "owners": [owner.to_dict() for owner in self.owners],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        if not self.owners:
            return text_of(
                (
                    f"{self.what}, {format_size(self.bytes)}: no owner is visible from Python.",
                    *self.notes,
                )
            )
        lines = []
        for number, owner in enumerate(self.owners):
            where = f" ({place_text(owner.file, owner.line)} {owner.source})" if owner.line else ""
            start = (
                f"{self.what}, {format_size(self.bytes)}, is held by" if not number else "and by"
            )
            lines.append(f"{start} {owner.name}, {owner.kind}{where}")
            lines += [f"  {'  ' * depth}{text}" for depth, text in enumerate(owner.chain)]
        return text_of((*lines, *self.notes))


class _HolderList:
    """The owners of one storage, as they are found.

    Attributes:
        owners: those that a person would want to know of, by name and place.
        passing: variables of libraries' functions that run now; what has no name.
        own_names: the caller's own variables.
    """

    def __init__(self, caller: FrameType) -> None:
        self._caller = caller
        self.owners: dict[tuple[str, str, int], LeakOwner] = {}
        self.passing: dict[tuple[str, str, int], LeakOwner] = {}
        self.own_names: list[str] = []

    def add_variables(self, roots: Iterable[Root], tensor_ids: set[int]) -> None:
        """Adds the variables that are one of some tensors themselves."""
        for root in roots:
            if root.kind != "variable" or id(root.value) not in tensor_ids:
                continue
            if root.code is self._caller.f_code:
                self.own_names.append(root.name)
                continue
            place = root_text(root)
            owner = LeakOwner(root.name, "variable", chain=(place, f"variable {root.name}"))
            table = self.passing if root.tier else self.owners
            table.setdefault((owner.name, place, 0), owner)

    def add_chain(self, search: Search, statements: Statements, chain: Chain) -> None:
        """Adds what holds the tensor at the end of a chain."""
        if len(chain.links) == 1 and chain.root is not None:
            if chain.root.kind == "variable":
                return
            if chain.root.value is self._caller.f_globals:
                self.own_names.append(chain.links[0].name)
                return
        at = _owner_index(search, chain)
        way = Chain(chain.root, tuple(chain.links[: at + 1]))
        keeper = statements.keeper(way, chain.links[-1].value, is_graph=False)
        owner = owner_of(search, chain, at, keeper)
        table = self.passing if has_no_name(chain, owner) else self.owners
        table.setdefault((owner.name, owner.file, owner.line), owner)

    def ranked(self) -> list[LeakOwner]:
        """The owners, plain variables last; the caller's own variables where there are no others."""
        has_better = bool(self.owners or self.own_names)
        table = self.owners if has_better else self.passing
        owners = sorted(table.values(), key=lambda owner: owner.kind == "variable")
        own_names = dict.fromkeys(self.own_names)
        return owners or [
            LeakOwner(name, "variable", chain=(f"variable {name}",)) for name in own_names
        ]

    def notes(self) -> list[str]:
        """Sentences on what is left out."""
        notes = []
        left_out = len(self.ranked()) - _MOST_OWNERS
        if left_out > 0:
            notes.append(f"and {counted(left_out, 'more owner')}")
        if (self.owners or self.own_names) and self.passing:
            variables = counted(len(self.passing), "variable")
            notes.append(f"and by {variables} of running library functions or without a name")
        return notes


def who_holds(tensor: Any) -> Holders:
    """The holders of a tensor's memory: the chains from a root to it. The caller's own variable
    for it does not count.

    Raises:
        UsageError: it is not a tensor.
    """
    torch = loaded()
    if torch is None or not (torch.is_tensor(tensor) or id(type(tensor)) in torch.storage_types):
        raise UsageError("who_holds() takes a tensor")
    storage = torch.storage_of(tensor)
    text = "the storage"
    if torch.is_tensor(tensor):
        text = f"{class_name(type(tensor))} {torch.shape_text(tensor)}"
    if storage is None:
        return Holders(text, 0, (), ("it has no memory of its own (meta, sparse or fake)",))
    holder_list = _HolderList(sys._getframe(1))
    search = Search(torch)
    with undisturbed(), torch.torch._C.DisableTorchFunction(), closing(search):
        roots = all_roots()
        search.run(roots)
        statements = Statements(search)
        looks = search.looks_at(storage)
        tensor_ids = {id(tensor), *(id(search.order[place]) for place in looks)}
        holder_list.add_variables(roots, tensor_ids)
        for chain in _chains(search, storage):
            holder_list.add_chain(search, statements, chain)
        notes = tuple(search.skipped)
        del roots
    owners = tuple(holder_list.ranked()[:_MOST_OWNERS])
    return Holders(text, storage.size_bytes, owners, (*holder_list.notes(), *notes))


def _chains(search: Search, storage: Storage) -> list[Chain]:
    """Chains to all tensors that look at a storage, one for each object that holds one directly;
    the nearest first.
    """
    places = search.looks_at(storage)[:_MOST_LOOKS]
    if not places:
        return []
    first = search.storages[storage]
    tensors = {id(search.order[place]): place for place in places}
    pairs = [*_holders_of(search, tensors), *_savers_of(search, storage, tensors)]
    # All at once: naming an edge can make Python lay out an object anew, which hides the edge that
    # the search took.
    parents = search.parents([*places, *(holder for holder, _, _ in pairs)])
    chains = [chain_of(search, search.path(first, parents), parents)]
    done = {(parents[first][0], first)}
    for holder, place, label in sorted(pairs)[: 4 * _MOST_OWNERS]:
        if (holder, place) not in done and place not in search.path(holder, parents):
            done.add((holder, place))
            above = {**parents, place: (holder, label)}
            chains.append(chain_of(search, [*search.path(holder, parents), place], above))
    return chains


def _holders_of(search: Search, tensors: Mapping[int, int]) -> list[tuple[int, int, str]]:
    """Objects that hold one of some tensors in Python's own references: their position, the
    tensor's, no label.
    """
    order = search.order
    # This, unlike ``gc.get_referents``, hands out nothing but objects that the collector knows:
    # those that are alive.
    ids = referrer_ids(order[place] for place in tensors.values()) - {id(order)}
    places = list(compress(range(len(order)), map(ids.__contains__, map(id, order))))
    return [
        (place, tensors[id(referent)], "")
        for place in places
        for referent in search.referents.of_one(order[place])
        if id(referent) in tensors
    ]


def _savers_of(
    search: Search, storage: Storage, tensors: Mapping[int, int]
) -> list[tuple[int, int, str]]:
    """Autograd nodes that keep a storage: their position, the tensor's, and how."""
    torch, order = search.torch, search.order
    first = search.storages[storage]
    savers = []
    for low, high in search.graph_from:
        for place in range(low, min(high, low + _MOST_NODES)):
            if not torch.is_node(order[place]):
                continue
            for label, saved in torch.held_by_node(order[place]):
                if torch.is_tensor(saved) and torch.storage_of(saved) == storage:
                    savers.append((place, tensors.get(id(saved), first), label))
    return savers


def _owner_index(search: Search, chain: Chain) -> int:
    """The link that a person would call the owner: the last that is neither the tensor nor of
    its graph.
    """
    best = 0
    for index, link in enumerate(chain.links[:-1]):
        if search.torch.is_tensor(link.value) or search.torch.is_node(link.value):
            return max(index - 1, 0) if index else 0
        best = index
    return best
