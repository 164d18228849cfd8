"""What a recording measured beside its events: ledgers of the devices, samples of counters."""

from __future__ import annotations

from typing import Any

import numpy as np

from vramlens.ground.verdict import RowConfidence
from vramlens.ground.vocabulary import LedgerRow
from vramlens.read.parts.entries import LATEST_US, by_device, counts_of, rows_of
from vramlens.read.values import (
    LARGEST_NUMBER,
    as_dict,
    as_fraction,
    as_list,
    as_number,
    as_size,
    text_of,
)
from vramlens.trace import DeviceLedger, DeviceProcess, Ledgers, Samples
from vramlens.trace.measurements import UNKNOWN

_MOST_PARTS, _MOST_PROCESSES = 64, 256

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
        by_moment[moment] = {}
        for device, rows in by_device(entry.get("devices")):
            ledger = _ledger(as_dict(rows))
            if ledger is not None:
                by_moment[moment][device] = ledger
            else:
                missing.append(
                    f"device {device}: its measured ledger ({moment}) does not add up to the "
                    "device's memory, and is skipped"
                )
        host[moment] = counts_of(entry.get("host"), _MOST_PARTS)
    return Ledgers(**by_moment, host=host)


def _ledger(entry: dict[str, Any]) -> DeviceLedger | None:
    """A device's ledger; None unless its parts sum to the whole."""
    total = as_size(entry.get("total_bytes"))
    rows = map(as_dict, as_list(entry.get("rows"))[:_MOST_PARTS])
    parts = tuple(map(_ledger_part, rows))
    readable = tuple(part for part in parts if part is not None)
    is_whole = len(readable) == len(parts) and sum(part.bytes for part in readable) == total
    if total is None or not is_whole:
        return None
    listed = map(as_dict, as_list(entry.get("processes"))[:_MOST_PROCESSES])
    processes = tuple(process for process in map(_process, listed) if process is not None)
    return DeviceLedger(total, readable, processes)


def _process(entry: dict[str, Any]) -> DeviceProcess | None:
    pid, size = as_number(entry.get("pid")), as_size(entry.get("bytes"))
    if pid is None or size is None:
        return None
    return DeviceProcess(pid, size, entry.get("is_this") is True)


def _ledger_part(row: dict[str, Any]) -> LedgerRow | None:
    kind, size = text_of(row.get("kind"), 100), as_number(row.get("bytes"))
    if not kind or size is None:
        return None
    confidence = row.get("confidence")
    known_confidence = confidence if confidence in tuple(RowConfidence) else RowConfidence.UNKNOWN
    return LedgerRow(kind, size, known_confidence, text_of(row.get("note")))


def samples_of(part: dict[str, Any], _missing: list[str]) -> Samples:
    """The samples, in order of time; rows without a time, a device or allocated bytes are passed
    over.
    """
    required = [_SAMPLED.index(name) for name in _REQUIRED]
    rows: list[list[int]] = []
    for cells in rows_of(part, _SAMPLED, _REQUIRED):
        numbers = list(map(as_number, cells, _LIMITS))
        if all(numbers[place] is not None for place in required):
            rows.append([UNKNOWN if number is None else number for number in numbers])
    table = np.array(rows, np.int64).reshape(-1, len(_SAMPLED))
    table = table[np.argsort(table[:, 0], kind="stable")]
    columns = {name: table[:, place] for place, name in enumerate(_SAMPLED)}
    return Samples(as_fraction(part.get("interval_s")), **columns)
