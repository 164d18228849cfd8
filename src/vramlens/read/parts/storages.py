"""The named tensors of a recording, and what kept its memory, by address."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vramlens.ground.verdict import Verdict
from vramlens.read.parts.entries import LATEST_US, as_location, as_texts, column_of, rows_of
from vramlens.read.values import as_dict, as_fraction, as_list, as_number, as_text, text_of
from vramlens.trace import (
    AT_THE_END,
    NO_OWNER,
    KeptBy,
    Owners,
    ParameterUse,
    TensorKind,
    TensorNames,
)

_MOST_OWNERS = 2_000
_MOST_LINKS = 64
_MOST_SKIPPED = 64
_LONGEST_LINK = 200
_MOST_PARTS = 1 << 20
_STORED = ("device", "address", "bytes", "owner")
_KINDS = {kind.name.lower(): kind.value for kind in TensorKind}
_USES = {use.name.lower(): use.value for use in ParameterUse}
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


class _NamedStorage(NamedTuple):
    """A row of ``TensorNames``."""

    device: int
    address: int
    size_bytes: int
    kind: int
    use: int
    time_us: int
    name: str
    dtype: str
    parts: int
    kept_by: str
    unfrozen: str
    shape: str
    frozen: bool
    circle: str
    in_graph: bool


def names_of(part: dict[str, Any], _missing: list[str]) -> TensorNames:
    """The named storages; rows without an address, a size or a name are passed over."""
    rows: list[_NamedStorage] = []
    for tensor in as_list(part.get("tensors")):
        entry = as_dict(tensor)
        location = as_location(entry.get("device"), entry.get("address"), entry.get("bytes"))
        name = text_of(entry.get("name"))
        if location is None or not name:
            continue
        time_us = as_number(entry.get("time_us"), LATEST_US)
        rows.append(
            _NamedStorage(
                *location,
                kind=_KINDS.get(text_of(entry.get("kind")), TensorKind.TENSOR),
                use=_USES.get(text_of(entry.get("use")), ParameterUse.UNKNOWN),
                time_us=AT_THE_END if time_us is None else time_us,
                name=name,
                dtype=text_of(entry.get("dtype")),
                parts=as_number(entry.get("parts"), _MOST_PARTS) or 0,
                kept_by=text_of(entry.get("kept_by"), _LONGEST_LINK),
                unfrozen=text_of(entry.get("unfrozen")),
                shape=text_of(entry.get("shape"), _LONGEST_LINK),
                frozen=entry.get("frozen") is True,
                circle=text_of(entry.get("circle"), _LONGEST_LINK),
                in_graph=entry.get("in_graph") is True,
            )
        )
    return TensorNames(
        device=column_of(rows, 0, np.int32),
        address=column_of(rows, 1, np.uint64),
        size_bytes=column_of(rows, 2, np.int64),
        kind=column_of(rows, 3, np.uint8),
        use=column_of(rows, 4, np.uint8),
        time_us=column_of(rows, 5, np.int64),
        name=tuple(row.name for row in rows),
        dtype=tuple(row.dtype for row in rows),
        parts=tuple(row.parts for row in rows),
        kept_by=tuple(row.kept_by for row in rows),
        unfrozen=tuple(row.unfrozen for row in rows),
        shape=tuple(row.shape for row in rows),
        frozen=tuple(row.frozen for row in rows),
        circle=tuple(row.circle for row in rows),
        in_graph=tuple(row.in_graph for row in rows),
    )


def owners_of(part: dict[str, Any], _missing: list[str]) -> Owners:
    """What kept memory when the program was searched; storages without an address or a size are
    passed over.
    """
    listed = as_list(part.get("owners"))[:_MOST_OWNERS]
    owners = tuple(_kept_by(as_dict(owner)) for owner in listed)
    rows: list[tuple[int, int, int, int]] = []
    for device, address, size, owner in rows_of(as_dict(part.get("storages")), _STORED, _STORED):
        location = as_location(device, address, size)
        if location is not None:
            owner_row = as_number(owner, len(owners) - 1)
            rows.append((*location, NO_OWNER if owner_row is None else owner_row))
    return Owners(
        time_us=as_number(part.get("time_us"), LATEST_US),
        complete=part.get("complete") is True,
        skipped=tuple(filter(None, as_texts(part.get("skipped"), _MOST_SKIPPED))),
        owners=owners,
        device=column_of(rows, 0, np.int32),
        address=column_of(rows, 1, np.uint64),
        size_bytes=column_of(rows, 2, np.int64),
        owner=column_of(rows, 3, np.int64),
    )


def _kept_by(entry: dict[str, Any]) -> KeptBy:
    leak_class, verdict = text_of(entry.get("class")), entry.get("verdict")
    fix_share = as_fraction(entry.get("fix_share"))
    return KeptBy(
        name=text_of(entry.get("name")),
        kind=text_of(entry.get("kind"), 100),
        file=text_of(entry.get("file")),
        line=as_number(entry.get("line"), 1 << 31) or 0,
        function=text_of(entry.get("function")),
        chain=tuple(filter(None, as_texts(entry.get("chain"), _MOST_LINKS, _LONGEST_LINK))),
        leak_class=leak_class if leak_class in _CLASSES else None,
        verdict=Verdict(verdict) if verdict in tuple(Verdict) else None,
        fix=as_text(entry.get("fix")),
        source=text_of(entry.get("source")),
        is_freed=entry.get("freed") is True,
        fix_share=1.0 if fix_share is None else min(1.0, fix_share),
    )
