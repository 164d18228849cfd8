"""Rows of a lake: what is known of one rank, as columns of the lake's tables, and back where
that is needed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramlens.fleet.summary_json import summary_to_json
from vramlens.fleet.typed_json import from_json
from vramlens.ranks import RankSummary
from vramlens.trace import NO_STACK, Events, Frame, Stacks, Trace
from vramlens.trace.flight import Collective, FlightRecord
from vramlens.trace.rank_error import RankError

Columns = dict[str, Any]
"""A column each, of equal length."""


_NO_NUMBERS, _NO_IDS = np.zeros(0, np.uint64), np.zeros(0, np.uint32)
_NO_EVENTS = Events(
    action=np.zeros(0, np.uint8),
    address=_NO_NUMBERS,
    size=_NO_NUMBERS,
    stream=_NO_NUMBERS,
    time_us=np.zeros(0, np.int64),
    stack=_NO_IDS,
    compile_context=_NO_IDS,
    user_metadata=_NO_IDS,
    other_action=_NO_IDS,
    pool=_NO_IDS,
)


def _texts(values: Sequence[str | None]) -> NDArray[Any]:
    return np.array(values, dtype=object)


def rank_row(one: RankSummary) -> Columns:
    """One row: the figures that are asked for most, and the summary whole."""
    ledger = dict(one.ledger)
    return {
        "rank": np.array([one.rank], np.int32),
        "host": _texts([one.host or ""]),
        "device": np.array([one.device], np.int32),
        "peak_requested_bytes": np.array([one.peak_requested_bytes], np.int64),
        "peak_allocated_bytes": np.array([one.peak_allocated_bytes], np.int64),
        "peak_reserved_bytes": np.array([one.peak_reserved_bytes], np.int64),
        "nccl_bytes": np.array([ledger.get("nccl", -1)], np.int64),
        "other_processes_bytes": np.array([ledger.get("other_processes", -1)], np.int64),
        "steps": np.array([len(one.step_peaks)], np.int32),
        "failed_us": np.array(
            [one.failure.time_us if one.failure and one.failure.died else 0], np.int64
        ),
        "summary": _texts([summary_to_json(one)]),
    }


def line_rows(one: RankSummary) -> Columns:
    """One row a line of the summary."""
    lines = one.lines
    return {
        "rank": np.full(len(lines), one.rank, np.int32),
        "file": _texts([line.place.file if line.place else "" for line in lines]),
        "line": np.array([line.place.line if line.place else 0 for line in lines], np.int32),
        "function": _texts([line.place.function if line.place else "" for line in lines]),
        "category": _texts([line.category for line in lines]),
        "phase": _texts([line.phase for line in lines]),
        "peak_bytes": np.array([line.peak_bytes for line in lines], np.int64),
        "at_peak_bytes": np.array([line.at_peak_bytes for line in lines], np.int64),
        "allocations": np.array([line.allocations for line in lines], np.int64),
        "total_bytes": np.array([line.total_bytes for line in lines], np.int64),
    }


def step_rows(one: RankSummary) -> Columns:
    """One row a step."""
    count = len(one.step_peaks)
    return {
        "rank": np.full(count, one.rank, np.int32),
        "step": np.arange(count, dtype=np.int32),
        "peak_bytes": np.array(one.step_peaks, np.int64),
    }


def event_rows(trace: Trace, summary: RankSummary) -> dict[str, Columns]:
    """The events of the rank's device, and the stacks that they name."""
    device = trace.devices.get(summary.device)
    events = _NO_EVENTS if device is None else device.events
    used = np.unique(events.stack[events.stack != NO_STACK])
    hashes, rows = _stack_hashes(trace.stacks, used)
    identity = np.zeros(len(events), np.uint64)
    known = events.stack != NO_STACK
    identity[known] = hashes[np.searchsorted(used, events.stack[known])]
    count = len(events)
    return {
        "events": {
            "rank": np.full(count, summary.rank, np.int32),
            "seq": np.arange(count, dtype=np.int32),
            "time_us": events.time_us,
            "action": events.action,
            "address": events.address,
            "size_bytes": events.size,
            "stream": events.stream,
            "stack": identity,
        },
        "stacks": {
            "stack": hashes,
            "file": _texts([row[0] for row in rows]),
            "line": np.array([row[1] for row in rows], np.int32),
            "function": _texts([row[2] for row in rows]),
            "frames": _texts([row[3] for row in rows]),
        },
    }


def _stack_hashes(
    stacks: Stacks, used: NDArray[np.uint32]
) -> tuple[NDArray[np.uint64], list[tuple[str, int, str, str]]]:
    """An id of each stack that depends on its text alone, and its user line and frames."""
    hashes, rows = np.zeros(len(used), np.uint64), []
    for place, stack in enumerate(used.tolist()):
        text = "\n".join(map(str, stacks.of(stack)))
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        hashes[place] = int.from_bytes(digest, "little")
        user = int(stacks.user_frame[stack])
        frame = stacks.frame(user) if user >= 0 else Frame("", 0, "")
        rows.append((frame.file, frame.line, frame.function, text))
    return hashes, rows


def collective_rows(rank: int, flight: FlightRecord) -> Columns:
    """One row a call; the first row has the whole record beside it, so that it can be read back."""
    calls: list[Collective | None] = list(flight.collectives) or [None]
    frames = [None if one is None else one.user_frame for one in calls]
    return {
        "rank": np.full(len(calls), rank, np.int32),
        "group_name": _texts([one.group if one else "" for one in calls]),
        "seq": np.array([one.seq if one else -1 for one in calls], np.int64),
        "name": _texts([one.name if one else "" for one in calls]),
        "state": _texts([one.state if one else "" for one in calls]),
        "created_ns": np.array([one.created_ns or 0 if one else 0 for one in calls], np.int64),
        "file": _texts([frame.file if frame else "" for frame in frames]),
        "line": np.array([frame.line if frame else 0 for frame in frames], np.int32),
        "record": _texts([_flight_to_json(flight), *[None] * (len(calls) - 1)]),
    }


def error_row(rank: int, error: RankError) -> Columns:
    """One row: the error, and the user's innermost frame."""
    frame = error.user_frame or Frame("", 0, "")
    return {
        "rank": np.array([rank], np.int32),
        "message": _texts([error.message]),
        "time_s": np.array([-1 if error.time_s is None else error.time_s], np.int64),
        "file": _texts([frame.file]),
        "line": np.array([frame.line], np.int32),
        "function": _texts([frame.function]),
        "follows": np.array([error.follows]),
        "source": _texts([error.source]),
    }


def _flight_to_json(flight: FlightRecord) -> str:
    return json.dumps(
        {
            "source": flight.source,
            "version": flight.version,
            "library_version": flight.library_version,
            "groups": {name: asdict(group) for name, group in flight.groups.items()},
            "last_completed": dict(flight.last_completed),
            "collectives": [asdict(one) for one in flight.collectives],
        },
        separators=(",", ":"),
    )


def flight_from_json(text: object) -> FlightRecord:
    """The flight record that lies beside the first of its calls.

    Raises:
        ValueError: it is no such text.
    """
    return from_json(FlightRecord, text)
