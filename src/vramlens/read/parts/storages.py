"""The named tensors of a recording, and what kept its memory, by address."""

from __future__ import annotations

from typing import Any

import numpy as np

from vramlens.ground.verdict import Verdict
from vramlens.read.parts.entries import LATEST_US, as_address, as_texts, rows_of
from vramlens.read.values import (
    MOST_DEVICES,
    as_dict,
    as_fraction,
    as_list,
    as_number,
    as_size,
    as_text,
)
from vramlens.trace import AT_THE_END, NO_OWNER, KeptBy, Owners, TensorKind, TensorNames

_MOST_OWNERS = 2_000
_MOST_LINKS = 64
_MOST_SKIPPED = 64
_LONGEST_LINK = 200
_STORED = ("device", "address", "bytes", "owner")
_KINDS = {kind.name.lower(): kind.value for kind in TensorKind}
_CLASSES = frozenset(
    {
        "graph",
        "container",
        "cycle",
        "autograd_cycle",
        "hook",
        "exception",
        "cache",
        "closure",
        "thread",
        "stream",
        "pool",
        "context",
        "pinned",
        "external",
        "other",
    }
)


def names_of(part: dict[str, Any], _missing: list[str]) -> TensorNames:
    """The named storages; rows without an address, a size or a name are passed over."""
    rows: list[tuple[int, int, int, int, int, str]] = []
    for tensor in as_list(part.get("tensors")):
        entry = as_dict(tensor)
        device = as_number(entry.get("device"), MOST_DEVICES)
        address, size = as_address(entry.get("address")), as_size(entry.get("bytes"))
        name, kind = as_text(entry.get("name")), entry.get("kind")
        if device is None or address is None or size is None or not name:
            continue
        kind_number = _KINDS.get(kind, 0) if isinstance(kind, str) else 0
        time_us = as_number(entry.get("time_us"), LATEST_US)
        moment = AT_THE_END if time_us is None else time_us
        rows.append((device, address, size, kind_number, moment, name))
    devices, addresses, sizes, kinds, times, names = zip(*rows, strict=True) if rows else ((),) * 6
    return TensorNames(
        device=np.array(devices, np.int32),
        address=np.array(addresses, np.uint64),
        size_bytes=np.array(sizes, np.int64),
        kind=np.array(kinds, np.uint8),
        time_us=np.array(times, np.int64),
        name=tuple(names),
    )


def owners_of(part: dict[str, Any], _missing: list[str]) -> Owners:
    """What kept memory when the program was searched; storages without an address or a size are
    passed over.
    """
    listed = as_list(part.get("owners"))[:_MOST_OWNERS]
    owners = tuple(_kept_by(as_dict(owner)) for owner in listed)
    rows: list[tuple[int, int, int, int]] = []
    for cells in rows_of(as_dict(part.get("storages")), _STORED, _STORED):
        device, address = as_number(cells[0], MOST_DEVICES), as_address(cells[1])
        size, owner = as_size(cells[2]), cells[3]
        if device is None or address is None or size is None:
            continue
        has_owner = type(owner) is int and 0 <= owner < len(owners)
        rows.append((device, address, size, owner if has_owner else NO_OWNER))
    devices, addresses, sizes, owner_rows = zip(*rows, strict=True) if rows else ((),) * 4
    return Owners(
        time_us=as_number(part.get("time_us"), LATEST_US),
        complete=part.get("complete") is True,
        skipped=tuple(filter(None, as_texts(part.get("skipped"), _MOST_SKIPPED))),
        owners=owners,
        device=np.array(devices, np.int32),
        address=np.array(addresses, np.uint64),
        size_bytes=np.array(sizes, np.int64),
        owner=np.array(owner_rows, np.int64),
    )


def _kept_by(entry: dict[str, Any]) -> KeptBy:
    leak_class, verdict = entry.get("class"), entry.get("verdict")
    fix_share = as_fraction(entry.get("fix_share"))

    def text(key: str, longest: int | None = None) -> str:
        read = as_text(entry.get(key)) if longest is None else as_text(entry.get(key), longest)
        return read or ""

    return KeptBy(
        name=text("name"),
        kind=text("kind", 100),
        file=text("file"),
        line=as_number(entry.get("line"), 1 << 31) or 0,
        function=text("function"),
        chain=tuple(filter(None, as_texts(entry.get("chain"), _MOST_LINKS, _LONGEST_LINK))),
        leak_class=leak_class if isinstance(leak_class, str) and leak_class in _CLASSES else None,
        verdict=Verdict(verdict) if verdict in tuple(Verdict) else None,
        fix=as_text(entry.get("fix")),
        source=text("source"),
        is_freed=entry.get("freed") is True,
        fix_share=1.0 if fix_share is None else min(1.0, fix_share),
    )
