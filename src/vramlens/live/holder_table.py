"""Who holds the most: every byte in tensors, each in one row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from vramlens.argument_types import number_given, takes
from vramlens.capture.process.undisturbed import undisturbed
from vramlens.foreign_text import text_of
from vramlens.ground.wrapped_lines import wrapped_lines
from vramlens.leak.claim import place_text
from vramlens.leak.leak import LeakOwner
from vramlens.live.heap.dominators import Retained, nearest_by, retained_by
from vramlens.live.heap.search import Search
from vramlens.live.heap.search_time import SearchTime
from vramlens.live.heap.tensors import Storage, loaded
from vramlens.live.heap.unnamed_holders import not_reached
from vramlens.live.holder.chain import chain_of
from vramlens.live.holder.keeper import Statements
from vramlens.live.holder.owner import has_no_name, owner_of
from vramlens.schema import SCHEMA
from vramlens.units import counted, format_size

_MORE_ROWS = 5
"""Times as many as were asked for: the next look at a long table shows most of it."""
_NO_TORCH = ("the program has not imported torch",)


@dataclass(frozen=True, slots=True)
class OtherHolders:
    """Bytes of holders that have no row of their own.

    Attributes:
        kind: smaller, unnamed, unreached or unsearched.
        bytes, storages: how much they keep.
        holders: how many they are; 0 where that is not known.
    """

    kind: str
    bytes: int
    storages: int
    holders: int = 0

    @property
    def text(self) -> str:
        """Who they are."""
        match self.kind:
            case "smaller":
                return counted(self.holders, "smaller holder")
            case "unnamed":
                return "running library functions or unnamed objects"
            case "unreached":
                return "no variable (used inside a call, or by C++ code)"
        return "not searched"


@dataclass(frozen=True, slots=True)
class HolderTable:
    """Who holds the most.

    Attributes:
        rows: (owner, bytes that would go if it let go, storages), the most first.
        live_bytes: bytes of all live storages: the sum of ``rows`` and ``others``.
        seconds, objects: what the search took, and went through.
        notes: what was left out.
        others: who keeps what no row has.
    """

    rows: tuple[tuple[LeakOwner, int, int], ...]
    live_bytes: int
    seconds: float
    objects: int
    notes: tuple[str, ...] = ()
    others: tuple[OtherHolders, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As data."""
        return {
            "schema": SCHEMA,
            "live_bytes": self.live_bytes,
            "holders": [
                {"owner": owner.to_dict(), "retained_bytes": size, "storages": count}
                for owner, size, count in self.rows
            ],
            "others": [
                {"kind": other.kind, "bytes": other.bytes, "storages": other.storages}
                for other in self.others
            ],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return self.text("holders(top={}) shows more")

    def text(self, more: str) -> str:
        """As text.

        Args:
            more: how to see smaller holders; ``{}`` stands for a number of rows.
        """
        if not self.live_bytes:
            return text_of(("No tensors are kept alive: 0 bytes in use.", *self.notes))
        lines = [self._first_line()]
        entries = [
            *((row[1], self._row_text(row)) for row in self.rows),
            *((other.bytes, self._other_text(other, more)) for other in self.others),
        ]
        width = max(len(format_size(size)) for size, _ in entries)
        for size, row_text in entries:
            lines += wrapped_lines(f"  {format_size(size):>{width}}  {row_text}")
        return text_of((*lines, *self.notes))

    def _first_line(self) -> str:
        total = format_size(self.live_bytes)
        if not self.rows:
            return f"{total} in tensors."
        first, size, _ = self.rows[0]
        return f"{first.name} keeps {format_size(size)} of the {total} in tensors."

    def _row_text(self, row: tuple[LeakOwner, int, int]) -> str:
        owner, _, count = row
        where = f"  {place_text(owner.file, owner.line)}" if owner.line else ""
        return f"{owner.name}, {owner.kind}, {counted(count, 'tensor')}{where}"

    def _other_text(self, other: OtherHolders, more: str) -> str:
        text = f"{other.text}, {counted(other.storages, 'tensor')}"
        if other.kind != "smaller":
            return text
        shown = max(len(self.rows), 1)
        return f"{text} ({more.format(min(_MORE_ROWS * shown, shown + other.holders))})"


@dataclass(frozen=True, slots=True)
class HeldNow:
    """What is in tensors at one moment.

    Attributes:
        table: who holds it.
        storages: all of it, each storage once: they sum to the table's ``live_bytes``.
        looks: of the largest, what they are: ``Tensor [64, 300] float32``.
    """

    table: HolderTable
    storages: tuple[Storage, ...]
    looks: Mapping[Storage, str]


@takes(top=number_given)
def holders(top: int = 10) -> HolderTable:
    """The largest holders: by the bytes that would go if it let go.

    Args:
        top: how many rows.
    """
    torch = loaded()
    if torch is None:
        return HolderTable(rows=(), live_bytes=0, seconds=0.0, objects=0, notes=_NO_TORCH)
    search = Search(torch)
    with undisturbed(), torch.torch._C.DisableTorchFunction(), closing(search.run()):
        return _holder_table(search, retained_by(search), top)


def nearest_holders(top: int, allowed: SearchTime, *, most_looks: int = 0) -> HeldNow:
    """The largest holders by one way to each storage, the first that a search finds in
    the time that it may take: for a program that must not wait.

    Args:
        top: how many rows.
        allowed: the time that the search may take.
        most_looks: how many of the largest tensors of each device are described.
    """
    torch = loaded()
    if torch is None:
        return HeldNow(
            HolderTable(rows=(), live_bytes=0, seconds=0.0, objects=0, notes=_NO_TORCH), (), {}
        )
    search = Search(torch, allowed)
    with undisturbed(), torch.torch._C.DisableTorchFunction(), closing(search.run()):
        table = _holder_table(search, nearest_by(search), top)
        return HeldNow(table, tuple(search.storages), _looks(search, most_looks))


def _holder_table(search: Search, entries: Sequence[Retained], top: int) -> HolderTable:
    """The table of what a search has found; what it has not found is taken in afterwards.

    Args:
        entries: all holders, the largest first.
        top: how many get a row.
    """
    statements = Statements(search)
    rows: list[tuple[LeakOwner, int, int]] = []
    unnamed: list[tuple[LeakOwner, int, int]] = []
    for entry in entries[:top]:
        owner, is_unnamed = _owner_at(search, statements, entry)
        (unnamed if is_unnamed else rows).append((owner, entry.bytes, entry.storages))
    if not rows:
        rows, unnamed = unnamed, []
    smaller = entries[top:]
    other_holders = [
        _sum_of("smaller", [(entry.bytes, entry.storages) for entry in smaller], len(smaller)),
        _sum_of("unnamed", [(size, count) for _, size, count in unnamed], len(unnamed)),
        _unsearched(search, entries),
    ]
    other_holders.append(_sum_of("unreached", [(size, 1) for size in _take_in_unreached(search)]))
    return HolderTable(
        rows=tuple(rows),
        live_bytes=search.live_bytes,
        seconds=search.seconds,
        objects=len(search.order),
        notes=tuple(search.skipped),
        others=tuple(other for other in other_holders if other.bytes),
    )


def _sum_of(kind: str, parts: Iterable[tuple[int, int]], holders: int = 0) -> OtherHolders:
    pairs = list(parts)
    return OtherHolders(
        kind,
        bytes=sum(size for size, _ in pairs),
        storages=sum(count for _, count in pairs),
        holders=holders,
    )


def _unsearched(search: Search, entries: Iterable[Retained]) -> OtherHolders:
    """What is in none of the entries: the time to compute them ran out."""
    in_entries = _sum_of("", [(entry.bytes, entry.storages) for entry in entries])
    return OtherHolders(
        "unsearched",
        bytes=search.live_bytes - in_entries.bytes,
        storages=len(search.storages) - in_entries.storages,
    )


def _take_in_unreached(search: Search) -> list[int]:
    """Adds the tensors that no root leads to, and what they hold; the sizes of their storages."""
    reached = set(search.storages)
    tensors = not_reached(search)
    search.go_on([("", tensor) for tensor in tensors])
    for tensor in tensors:  # where no time is left to go on
        storage = search.unreached_storage(tensor)
        if storage is not None:
            search.storages[storage] = -1
    return [storage.size_bytes for storage in search.storages if storage not in reached]


def _looks(search: Search, most: int) -> dict[Storage, str]:
    """What the largest tensors of each device are."""
    by_device: dict[str, list[Storage]] = {}
    for storage in search.storages:
        by_device.setdefault(storage.device, []).append(storage)
    return {
        storage: _look(search, search.storages[storage])
        for storages in by_device.values()
        for storage in sorted(storages, key=lambda one: -one.size_bytes)[:most]
    }


def _look(search: Search, position: int) -> str:
    value = search.order[position] if position >= 0 else None
    if not search.torch.is_tensor(value):
        return "a storage"
    return f"Tensor {search.torch.shape_text(value)}"


def _owner_at(search: Search, statements: Statements, entry: Retained) -> tuple[LeakOwner, bool]:
    parents = search.parents([entry.position])
    path = search.path(entry.position, parents)
    chain = chain_of(search, path, parents)
    at = len(chain.links) - 1
    keeper = statements.keeper(chain, entry.example, is_graph=False) if at >= 0 else None
    owner = owner_of(search, chain, at, keeper)
    return owner, has_no_name(chain, owner)
