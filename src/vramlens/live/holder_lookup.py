"""Who holds a tensor, and who holds the most: from a prompt, a debugger, a notebook."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import compress
from typing import Any

from vramlens.capture.process.undisturbed import undisturbed
from vramlens.errors import UsageError
from vramlens.foreign_text import text_of
from vramlens.live.heap.dominators import Retained, retained_by
from vramlens.live.heap.objects import class_name, is_users
from vramlens.live.heap.roots import all_roots
from vramlens.live.heap.search import Search
from vramlens.live.heap.tensors import Storage, loaded
from vramlens.live.holder.chain import Chain, chain_of, root_text
from vramlens.live.holder.keeper import Statements
from vramlens.live.holder.owner import owner_of
from vramlens.live.leaks.leak_report import Owner
from vramlens.live.leaks.leak_text import place_text
from vramlens.schema import SCHEMA
from vramlens.units import counted, format_size

_MOST_OWNERS = 8
_MOST_NODES = 20_000
_MOST_LOOKS = 1000  # views and detached tensors of one storage


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
    owners: tuple[Owner, ...]
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
                    f"{self.what}, {format_size(self.bytes)}: no owner that Python can see.",
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


@dataclass(frozen=True, slots=True)
class HolderTable:
    """Who holds the most.

    Attributes:
        rows: (owner, bytes that would go if it let go, storages), the most first.
        live_bytes: bytes of all live storages.
        seconds, objects: what the search took, and went through.
        notes: what was left out.
    """

    rows: tuple[tuple[Owner, int, int], ...]
    live_bytes: int
    seconds: float
    objects: int
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As data."""
        return {
            "schema": SCHEMA,
            "live_bytes": self.live_bytes,
            "holders": [
                {"owner": owner.to_dict(), "retained_bytes": size, "storages": count}
                for owner, size, count in self.rows
            ],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        if not self.rows:
            return f"Nothing holds a tensor: {format_size(self.live_bytes)} alive."
        first, size, _ = self.rows[0]
        lines = [
            f"{first.name} holds {format_size(size)} of {format_size(self.live_bytes)} in tensors."
        ]
        width = max(len(format_size(size)) for _, size, _ in self.rows)
        for owner, size, count in self.rows:
            where = f"  {place_text(owner.file, owner.line)}" if owner.line else ""
            lines.append(
                f"  {format_size(size):>{width}}  {owner.name}, {owner.kind}, {counted(count, 'storage')}{where}"
            )
        return text_of((*lines, *self.notes))


def who_holds(tensor: Any) -> Holders:
    """Who holds a tensor's memory: the chains from a root to it. The caller's own variable for it
    does not count.

    Raises:
        UsageError: it is no tensor.
    """
    torch = loaded()
    if torch is None or not (torch.is_tensor(tensor) or id(type(tensor)) in torch.storage_types):
        raise UsageError("who_holds() takes a tensor")
    storage = torch.storage_of(tensor)
    what = (
        f"{class_name(type(tensor))} {torch.shape_text(tensor)}"
        if torch.is_tensor(tensor)
        else "the storage"
    )
    if storage is None:
        return Holders(what, 0, (), ("it has no memory of its own (meta, sparse or fake)",))
    caller = sys._getframe(1)
    own: list[str] = []
    found: dict[tuple[str, str, int], Owner] = {}
    passing: dict[
        tuple[str, str, int], Owner
    ] = {}  # variables of libraries' functions that run now; what has no name
    search = Search(torch)
    with undisturbed(), torch.torch._C.DisableTorchFunction(), closing(search):
        roots = all_roots()
        search.run(roots)
        statements = Statements(search)
        known = {
            id(search.order[place]) for place, one in search.storage_at.items() if one == storage
        }
        known.add(id(tensor))
        for root in roots:
            if root.kind == "variable" and id(root.value) in known:
                if root.code is caller.f_code:
                    own.append(root.name)
                else:
                    owner = Owner(
                        root.name, "variable", chain=(root_text(root), f"variable {root.name}")
                    )
                    (passing if root.tier else found).setdefault(
                        (owner.name, root_text(root), 0), owner
                    )
        for chain in _chains(search, storage):
            if len(chain.links) == 1 and chain.root is not None and chain.root.kind == "variable":
                continue
            if (
                len(chain.links) == 1
                and chain.root is not None
                and chain.root.value is caller.f_globals
            ):
                own.append(chain.links[0].name)
                continue
            at = _owner_index(search, chain)
            held = chain.links[-1].value
            keeper = statements.keeper(
                Chain(chain.root, tuple(chain.links[: at + 1])), held, is_graph=False
            )
            owner = owner_of(search, chain, at, keeper)
            into = passing if _is_passing(chain, owner) else found
            into.setdefault((owner.name, owner.file, owner.line), owner)
        notes = tuple(search.skipped)
        del roots
    if (found or own) and passing:
        notes = (
            f"and by {counted(len(passing), 'variable')} of libraries' functions that run, or without a name",
            *notes,
        )
    owners = sorted(
        (found if found or own else passing).values(), key=lambda owner: owner.kind == "variable"
    )  # of those that pass it on
    if not owners:
        owners = [
            Owner(name, "variable", chain=(f"variable {name}",)) for name in dict.fromkeys(own)
        ]
    if len(owners) > _MOST_OWNERS:
        notes = (f"and {counted(len(owners) - _MOST_OWNERS, 'more owner')}", *notes)
    return Holders(what, storage.size_bytes, tuple(owners[:_MOST_OWNERS]), notes)


def _chains(search: Search, storage: Storage) -> list[Chain]:
    """Chains to all tensors that look at a storage, one for each object that holds one directly;
    the nearest first.
    """
    places = [place for place, one in search.storage_at.items() if one == storage][:_MOST_LOOKS]
    if not places:
        return []
    first = search.storages[storage]
    tensors = {id(search.order[place]): place for place in places}
    pairs = [*_holders_of(search, tensors), *_savers_of(search, storage, tensors)]
    # All at once: naming an edge can make Python lay out an object anew, which hides the edge that
    #     the search took.
    parents = search.parents([*places, *(holder for holder, _, _ in pairs)])
    found = [chain_of(search, search.path(first, parents), parents)]
    done = {(parents[first][0], first)}
    for holder, place, label in sorted(pairs)[: 4 * _MOST_OWNERS]:
        if (holder, place) not in done and place not in search.path(holder, parents):
            done.add((holder, place))
            above = {**parents, place: (holder, label)}
            found.append(chain_of(search, [*search.path(holder, parents), place], above))
    return found


def _holders_of(search: Search, tensors: Mapping[int, int]) -> list[tuple[int, int, str]]:
    """Objects that hold one of some tensors in Python's own references: their position, the
    tensor's, no label.
    """
    order = search.order
    # This, unlike ``gc.get_referents``, hands out nothing but objects that the collector knows:
    # those that are alive.
    referrers = gc.get_referrers(*(order[place] for place in tensors.values()))
    ids = {id(one) for one in referrers if one is not order}
    del referrers
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
    found = []
    for low, high in search.graph_from:
        for place in range(low, min(high, low + _MOST_NODES)):
            if torch.is_node(order[place]):
                for label, value in torch.held_by_node(order[place]):
                    if torch.is_tensor(value) and torch.storage_of(value) == storage:
                        found.append(
                            (place, tensors.get(id(value), search.storages[storage]), label)
                        )
    return found


def holders(top: int = 10) -> HolderTable:
    """Who holds the most: by the bytes that would go if it let go.

    Args:
        top: how many rows.
    """
    torch = loaded()
    if torch is None:
        return HolderTable((), 0, 0.0, 0, ("the program has not imported torch",))
    search = Search(torch)
    with undisturbed(), torch.torch._C.DisableTorchFunction(), closing(search.run()):
        statements = Statements(search)
        rows: list[tuple[Owner, int, int]] = []
        passing: list[tuple[Owner, int, int]] = []
        for entry in retained_by(search, top):
            owner, is_passing = _owner_at(search, statements, entry)
            (passing if is_passing else rows).append((owner, entry.bytes, entry.storages))
        notes = tuple(search.skipped)
        if rows and passing:
            size = format_size(sum(size for _, size, _ in passing))
            notes = (
                f"{size} more held by libraries' functions that run, or by what has no name",
                *notes,
            )
        live = sum(storage.size_bytes for storage in search.storages)
        return HolderTable(tuple(rows or passing), live, search.seconds, len(search.order), notes)


def _owner_at(search: Search, statements: Statements, entry: Retained) -> tuple[Owner, bool]:
    parents = search.parents([entry.position])
    path = search.path(entry.position, parents)
    chain = chain_of(search, path, parents)
    at = len(chain.links) - 1
    keeper = statements.keeper(chain, entry.example, is_graph=False) if at >= 0 else None
    owner = owner_of(search, chain, at, keeper)
    return owner, _is_passing(chain, owner)


def _is_passing(chain: Chain, owner: Owner) -> bool:
    """Whether an owner has no name of the user's: a variable of a library's function that runs,
    or no root at all.
    """
    if owner.line and is_users(owner.file):
        return False
    root = chain.root
    return root is None or (root.kind == "variable" and root.tier > 0)


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
