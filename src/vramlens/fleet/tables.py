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

from vramlens.analyses.finding import Place
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
_NO_FRAME, _NO_PLACE = Frame("", 0, ""), Place("", 0, "")
_NO_CALL = Collective(
    group="",
    description="",
    seq=-1,
    name="",
    is_p2p=False,
    state="",
    input_sizes=(),
    output_sizes=(),
    dtypes=(),
    created_ns=None,
    started_ns=None,
    completed_ns=None,
    frames=(),
)
"""Stands in the one row of a record without calls."""


def _texts(values: Sequence[str | None]) -> NDArray[Any]:
    return np.array(values, dtype=object)


def rank_row(summary: RankSummary) -> Columns:
    """One row: the figures that are asked for most, and the summary whole."""
    ledger = dict(summary.ledger)
    failed_us = summary.failure.time_us if summary.failure and summary.died else 0
    return {
        "rank": np.array([summary.rank], np.int32),
        "host": _texts([summary.host or ""]),
        "device": np.array([summary.device], np.int32),
        "peak_requested_bytes": np.array([summary.peak_requested_bytes], np.int64),
        "peak_allocated_bytes": np.array([summary.peak_allocated_bytes], np.int64),
        "peak_reserved_bytes": np.array([summary.peak_reserved_bytes], np.int64),
        "nccl_bytes": np.array([ledger.get("nccl", -1)], np.int64),
        "other_processes_bytes": np.array([ledger.get("other_processes", -1)], np.int64),
        "steps": np.array([len(summary.step_peaks)], np.int32),
        "failed_us": np.array([failed_us], np.int64),
        "summary": _texts([summary_to_json(summary)]),
    }


def line_rows(summary: RankSummary) -> Columns:
    """One row a line of the summary."""
    lines = summary.lines
    places = [line.place or _NO_PLACE for line in lines]
    return {
        "rank": np.full(len(lines), summary.rank, np.int32),
        "file": _texts([place.file for place in places]),
        "line": np.array([place.line for place in places], np.int32),
        "function": _texts([place.function for place in places]),
        "category": _texts([line.category for line in lines]),
        "phase": _texts([line.phase for line in lines]),
        "peak_bytes": np.array([line.peak_bytes for line in lines], np.int64),
        "at_peak_bytes": np.array([line.at_peak_bytes for line in lines], np.int64),
        "allocations": np.array([line.allocations for line in lines], np.int64),
        "total_bytes": np.array([line.total_bytes for line in lines], np.int64),
    }


def step_rows(summary: RankSummary) -> Columns:
    """One row a step."""
    count = len(summary.step_peaks)
    return {
        "rank": np.full(count, summary.rank, np.int32),
        "step": np.arange(count, dtype=np.int32),
        "peak_bytes": np.array(summary.step_peaks, np.int64),
    }


def event_rows(trace: Trace, summary: RankSummary) -> dict[str, Columns]:
    """The events of the rank's device, and the stacks that they name."""
    device = trace.devices.get(summary.device)
    events = _NO_EVENTS if device is None else device.events
    used = np.unique(events.stack[events.stack != NO_STACK])
    hashes, rows = _stack_hashes(trace.stacks, used)
    identity = np.zeros(len(events), np.uint64)
    has_stack = events.stack != NO_STACK
    identity[has_stack] = hashes[np.searchsorted(used, events.stack[has_stack])]
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
        frame = stacks.frame(user) if user >= 0 else _NO_FRAME
        rows.append((frame.file, frame.line, frame.function, text))
    return hashes, rows


def collective_rows(rank: int, flight: FlightRecord) -> Columns:
    """One row a call; the first row has the whole record beside it, so that it can be read back."""
    calls = flight.collectives or (_NO_CALL,)
    frames = [call.user_frame or _NO_FRAME for call in calls]
    return {
        "rank": np.full(len(calls), rank, np.int32),
        "group_name": _texts([call.group for call in calls]),
        "seq": np.array([call.seq for call in calls], np.int64),
        "name": _texts([call.name for call in calls]),
        "state": _texts([call.state for call in calls]),
        "created_ns": np.array([call.created_ns or 0 for call in calls], np.int64),
        "file": _texts([frame.file for frame in frames]),
        "line": np.array([frame.line for frame in frames], np.int32),
        "record": _texts([_flight_to_json(flight), *[None] * (len(calls) - 1)]),
    }


def error_row(rank: int, error: RankError) -> Columns:
    """One row: the error, and the user's innermost frame."""
    frame = error.user_frame or _NO_FRAME
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
            "collectives": [asdict(call) for call in flight.collectives],
        },
        separators=(",", ":"),
    )


def flight_from_json(text: object) -> FlightRecord:
    """The flight record that lies beside the first of its calls.

    Raises:
        ValueError: it is no such text.
    """
    return from_json(FlightRecord, text)
