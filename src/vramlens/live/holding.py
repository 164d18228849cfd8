"""Who holds a tensor, and who holds the most: from a prompt, a debugger, a notebook."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

from vramlens.errors import UsageError
from vramlens.live.chain import Chain, chain_of
from vramlens.live.classify import statement_source
from vramlens.live.dominators import Retained, retained_by
from vramlens.live.keeper import Statements
from vramlens.live.objects import class_name
from vramlens.live.owner import owner_name, owner_of
from vramlens.live.report import SCHEMA, Owner
from vramlens.live.search import Search, undisturbed
from vramlens.live.tensors import loaded
from vramlens.live.text import place_text
from vramlens.units import counted, format_size

_MOST_CHAINS = 3


@dataclass(frozen=True, slots=True)
class Holders:
    """Who holds a tensor.

    Attributes:
        what: the tensor, as text.
        bytes: of the storage behind it.
        owners: who holds it, the one that a person would want to know of first; the chain leads from a root to it.
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
            return "\n".join((f"{self.what}, {format_size(self.bytes)}: no owner that Python can see.", *self.notes))
        lines = []
        for number, owner in enumerate(self.owners):
            where = f" ({place_text(owner.file, owner.line)} {owner.source})" if owner.line else ""
            start = f"{self.what}, {format_size(self.bytes)}, is held by" if not number else "and by"
            lines.append(f"{start} {owner.name}, {owner.kind}{where}")
            lines += [f"  {'  ' * depth}{text}" for depth, text in enumerate(owner.chain)]
        return "\n".join((*lines, *self.notes))


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
        lines = [f"{first.name} holds {format_size(size)} of {format_size(self.live_bytes)} in tensors."]
        width = max(len(format_size(size)) for _, size, _ in self.rows)
        for owner, size, count in self.rows:
            where = f"  {place_text(owner.file, owner.line)}" if owner.line else ""
            lines.append(
                f"  {format_size(size):>{width}}  {owner.name}, {owner.kind}, {counted(count, 'storage')}{where}"
            )
        return "\n".join((*lines, *self.notes))


def who_holds(tensor: Any) -> Holders:
    """Who holds a tensor's memory: the chain from a root to it. The caller's own variable for it does not count.

    Raises:
        UsageError: it is no tensor.
    """
    torch = loaded()
    if torch is None or not (torch.is_tensor(tensor) or id(type(tensor)) in torch.storage_types):
        raise UsageError("who_holds() takes a tensor")
    storage = torch.storage_of(tensor)
    what = f"{class_name(type(tensor))} {torch.shape_text(tensor)}" if torch.is_tensor(tensor) else "the storage"
    if storage is None:
        return Holders(what, 0, (), ("it has no memory of its own (meta, sparse or fake)",))
    del tensor
    banned: set[tuple[int, int]] = set()
    names: set[str] = set()
    owners: list[Owner] = []
    own: list[str] = []
    notes: tuple[str, ...] = ()
    for _ in range(_MOST_CHAINS + 2):
        search = Search(torch, banned=banned, banned_variables=names)
        with undisturbed(), closing(search.run()):
            notes = tuple(search.skipped)
            position = search.storages.get(storage)
            if position is None:
                break
            parents = search.parents([position])
            path = search.path(position, parents)
            chain = chain_of(search, path, parents)
            direct = _direct(search, path)
            if direct is not None:
                if direct[0] == 0:
                    names.add(chain.links[0].name)
                else:
                    banned.add(direct)
                own.append(owner_name(chain, 0))
                continue
            at = _owner_index(search, chain)
            keeper = Statements(search).keeper(
                Chain(chain.root, tuple(chain.links[: at + 1])), search.order[position], is_graph=False
            )
            owners.append(owner_of(search, chain, at, keeper, statement_source(keeper)))
            break
    if not owners and own:
        owners = [Owner(name, "variable", chain=(f"variable {name}",)) for name in dict.fromkeys(own)]
    return Holders(what, storage.size_bytes, tuple(owners), notes)


def holders(top: int = 10) -> HolderTable:
    """Who holds the most: by the bytes that would go if it let go.

    Args:
        top: how many rows.
    """
    torch = loaded()
    if torch is None:
        return HolderTable((), 0, 0.0, 0, ("the program has not imported torch",))
    search = Search(torch)
    with undisturbed(), closing(search.run()):
        statements = Statements(search)
        rows = [
            (_owner_at(search, statements, entry), entry.bytes, entry.storages) for entry in retained_by(search, top)
        ]
        live = sum(storage.size_bytes for storage in search.storages)
        return HolderTable(tuple(rows), live, search.seconds, len(search.order), tuple(search.skipped))


def _owner_at(search: Search, statements: Statements, entry: Retained) -> Owner:
    parents = search.parents([entry.position])
    path = search.path(entry.position, parents)
    chain = chain_of(search, path, parents)
    at = len(chain.links) - 1
    keeper = statements.keeper(chain, entry.example, is_graph=False) if at >= 0 else None
    return owner_of(search, chain, at, keeper, statement_source(keeper))


def _direct(search: Search, path: list[int]) -> tuple[int, int] | None:
    """The edge, where a variable itself is the tensor: (0, ...) of a function, (id of the dict, ...) of a module."""
    root = search.roots.get(path[0])
    if root is None:
        return None
    if root.kind == "variable" and len(path) == 1:
        return 0, id(search.order[path[0]])
    if root.kind == "module" and len(path) == 2:
        return id(search.order[path[0]]), id(search.order[path[1]])
    return None


def _owner_index(search: Search, chain: Chain) -> int:
    """The link that a person would call the owner: the last that is neither the tensor nor of its graph."""
    best = 0
    for index, link in enumerate(chain.links[:-1]):
        if search.torch.is_tensor(link.value) or search.torch.is_node(link.value):
            return max(index - 1, 0) if index else 0
        best = index
    return best
