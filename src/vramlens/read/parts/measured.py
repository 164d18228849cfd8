"""What a recording measured beside its events: ledgers of the devices, samples of counters."""

from __future__ import annotations

from typing import Any

import numpy as np

from vramlens.ground.ledger_kinds import LedgerRow
from vramlens.read.parts.entries import LATEST_US, by_device, rows_of
from vramlens.read.values import (
    LARGEST_NUMBER,
    LONGEST_TEXT,
    as_dict,
    as_fraction,
    as_list,
    as_number,
    as_size,
    as_text,
)
from vramlens.trace import DeviceLedger, Ledgers, Samples

_MOST_PARTS = 64
_CONFIDENCES = ("exact", "inferred", "unknown")
_REQUIRED = ("time_us", "device", "allocated_bytes")
_SAMPLED = (
    "time_us",
    "step",
    "device",
    "allocated_bytes",
    "reserved_bytes",
    "free_bytes",
    "host_rss_bytes",
)
_LIMITS = [LATEST_US] + [LARGEST_NUMBER] * (len(_SAMPLED) - 1)


def ledgers_of(part: dict[str, Any], missing: list[str]) -> Ledgers:
    """The measured ledgers; those that do not add up are left out, and named in ``missing``."""
    by_moment: dict[str, dict[int, DeviceLedger]] = {}
    host: dict[str, dict[str, int]] = {}
    for moment in ("start", "peak", "end"):
        entry = as_dict(part.get(moment))
        ledgers = {
            device: _ledger(as_dict(rows)) for device, rows in by_device(entry.get("devices"))
        }
        missing += [
            f"device {device}: its measured ledger ({moment}) does not add up to the device's "
            "memory, and is skipped"
            for device, ledger in ledgers.items()
            if ledger is None
        ]
        by_moment[moment] = {
            device: ledger for device, ledger in ledgers.items() if ledger is not None
        }
        host[moment] = _host_figures(entry.get("host"))
    return Ledgers(**by_moment, host=host)


def _host_figures(host: object) -> dict[str, int]:
    listed = list(as_dict(host).items())[:_MOST_PARTS]
    sizes = {name[:LONGEST_TEXT]: as_number(size) for name, size in listed}
    return {name: size for name, size in sizes.items() if size is not None}


def _ledger(entry: dict[str, Any]) -> DeviceLedger | None:
    """A device's ledger; None unless its parts sum to the whole."""
    total = as_size(entry.get("total_bytes"))
    parts = [_ledger_part(as_dict(row)) for row in as_list(entry.get("rows"))[:_MOST_PARTS]]
    readable = tuple(part for part in parts if part is not None)
    if total is None or len(readable) < len(parts):
        return None
    return DeviceLedger(total, readable) if sum(part.bytes for part in readable) == total else None


def _ledger_part(row: dict[str, Any]) -> LedgerRow | None:
    kind, size = as_text(row.get("kind"), 100), as_number(row.get("bytes"))
    if not kind or size is None:
        return None
    confidence = row.get("confidence")
    known_confidence = confidence if confidence in _CONFIDENCES else "unknown"
    return LedgerRow(kind, size, known_confidence, as_text(row.get("note")) or "")


def samples_of(part: dict[str, Any], _missing: list[str]) -> Samples:
    """The samples, in order of time; rows without a time, a device or allocated bytes are passed
    over.
    """
    required = [_SAMPLED.index(name) for name in _REQUIRED]
    rows: list[list[int]] = []
    for cells in rows_of(part, _SAMPLED, _REQUIRED):
        numbers = [
            cell if type(cell) is int and 0 <= cell <= largest else -1
            for cell, largest in zip(cells, _LIMITS, strict=True)
        ]
        if all(numbers[place] >= 0 for place in required):
            rows.append(numbers)
    table = np.array(rows, np.int64).reshape(-1, len(_SAMPLED))
    table = table[np.argsort(table[:, 0], kind="stable")]
    columns = {name: table[:, place] for place, name in enumerate(_SAMPLED)}
    return Samples(as_fraction(part.get("interval_s")), **columns)
