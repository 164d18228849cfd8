"""Rows of a lake: what is known of one rank, as columns of the lake's tables.

Cells of texts, and numbers that may be unknown, are texts or None: the file's types come from the
tables' descriptions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Finding, Place
from vramlens.fleet.summary_json import summary_to_json
from vramlens.ranks import Comparison, RankSummary
from vramlens.trace import NO_STACK, Action, Events, Frame, Stacks, Trace
from vramlens.trace.flight import Collective, FlightRecord
from vramlens.trace.rank_error import RankError

Columns = Mapping[str, Any]
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
_ACTIONS = np.array([action.name.lower() for action in Action], dtype=object)


def cells(values: Iterable[object]) -> NDArray[Any]:
    """A column of texts: None stays, all else becomes its text."""
    texts = [value if value is None or isinstance(value, str) else str(value) for value in values]
    column = np.empty(len(texts), dtype=object)
    column[:] = texts
    return column


def columns_of(rows: Sequence[Mapping[str, object]]) -> Columns:
    """Rows as columns, each named as the first row has it."""
    return {name: cells(row[name] for row in rows) for name in rows[0]} if rows else {}


def moment(time_us: int | None) -> str | None:
    """Microseconds since the epoch as the text of a TIMESTAMP; None for 0 and below."""
    return None if not time_us or time_us < 0 else str(np.datetime64(time_us, "us"))


def _place_cells(place: Place | Frame | None) -> dict[str, object]:
    return {
        "file": None if place is None else place.file,
        "line": None if place is None else place.line,
        "function": None if place is None else place.function,
    }


def rank_rows(summary: RankSummary, source_us: int | None) -> Columns:
    """One row: the figures that are asked for most."""
    ledger = dict(summary.ledger)
    has_memory = summary.device >= 0
    trigger, ended_us = summary.ended or (None, None)
    return columns_of(
        [
            {
                "rank": summary.rank,
                "host": summary.host,
                "pid": summary.pid,
                "device": summary.device if has_memory else None,
                "device_name": summary.device_name,
                "total_bytes": summary.total_bytes,
                "peak_requested_bytes": summary.peak_requested_bytes if has_memory else None,
                "peak_allocated_bytes": summary.peak_allocated_bytes if has_memory else None,
                "peak_reserved_bytes": summary.peak_reserved_bytes if has_memory else None,
                "nccl_bytes": ledger.get("nccl"),
                "other_processes_bytes": ledger.get("other_processes"),
                "steps": len(summary.step_peaks) or None,
                "step_time_us": summary.step_us,
                "started_at": moment(summary.started_us),
                "ended_at": moment(ended_us),
                "ended_by": trigger,
                "died": summary.died,
                "source": summary.source,
                "source_us": source_us,
            }
        ]
    )


def line_rows(summary: RankSummary) -> Columns:
    """One row a line of the summary."""
    return columns_of(
        [
            {
                "rank": summary.rank,
                **_place_cells(line.place),
                "category": line.category,
                "phase": line.phase,
                "peak_bytes": line.peak_bytes,
                "at_peak_bytes": line.at_peak_bytes,
                "allocations": line.allocations,
                "total_bytes": line.total_bytes,
            }
            for line in summary.lines
        ]
    )


def step_rows(summary: RankSummary) -> Columns:
    """One row a step."""
    count = len(summary.step_peaks)
    if not count:
        return {}
    return {
        "rank": np.full(count, summary.rank, np.int32),
        "step": np.arange(count, dtype=np.int32),
        "peak_bytes": np.array(summary.step_peaks, np.int64),
    }


def summary_rows(summary: RankSummary) -> Columns:
    """One row: the summary whole."""
    return columns_of([{"rank": summary.rank, "summary": summary_to_json(summary)}])


def event_rows(trace: Trace, summary: RankSummary) -> dict[str, Columns]:
    """The events of the rank's device, and the stacks that they name."""
    device = trace.devices.get(summary.device)
    events = _NO_EVENTS if device is None else device.events
    if not len(events):
        return {}
    used = np.unique(events.stack[events.stack != NO_STACK])
    hashes, rows = _stack_hashes(trace.stacks, used)
    identity = np.zeros(len(events), np.int64)
    has_stack = events.stack != NO_STACK
    identity[has_stack] = hashes[np.searchsorted(used, events.stack[has_stack])]
    count = len(events)
    return {
        "events": {
            "rank": np.full(count, summary.rank, np.int32),
            "seq": np.arange(count, dtype=np.int32),
            "happened_at": events.time_us,
            "action": events.action,
            "address": events.address.view(np.int64),
            "size_bytes": events.size.view(np.int64),
            "stream": events.stream.view(np.int64),
            "stack": identity,
        },
        "stacks": columns_of(rows),
    }


def _stack_hashes(
    stacks: Stacks, used: NDArray[np.uint32]
) -> tuple[NDArray[np.int64], list[dict[str, object]]]:
    """An id of each stack that depends on its text alone, and its user line and frames."""
    hashes = np.zeros(len(used), np.int64)
    rows: list[dict[str, object]] = []
    for index, stack in enumerate(used.tolist()):
        text = "\n".join(map(str, stacks.of(stack)))
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        # 0 is what has no stack.
        hashes[index] = int.from_bytes(digest, "little", signed=True) or 1
        user = int(stacks.user_frame[stack])
        frame = stacks.frame(user) if user >= 0 else None
        rows.append({"stack": int(hashes[index]), **_place_cells(frame), "frames": text})
    return hashes, rows


def collective_rows(rank: int, flight: FlightRecord) -> Columns:
    """One row a call."""
    return columns_of([_collective_row(rank, call) for call in flight.collectives])


def _collective_row(rank: int, call: Collective) -> dict[str, object]:
    duration_us = None
    if call.started_ns is not None and call.completed_ns is not None:
        duration_us = (call.completed_ns - call.started_ns) // 1000
    return {
        "rank": rank,
        "group_name": call.group,
        "seq": call.seq,
        "name": call.name,
        "is_p2p": call.is_p2p,
        "state": call.state,
        "elements": prod(call.input_sizes[0]) if call.input_sizes else None,
        "created_at": moment(None if call.created_ns is None else call.created_ns // 1000),
        "duration_us": duration_us,
        **_place_cells(call.user_frame),
    }


def flight_rows(rank: int, flight: FlightRecord) -> Columns:
    """One row: the flight record whole."""
    record = {
        "source": flight.source,
        "version": flight.version,
        "library_version": flight.library_version,
        "groups": {name: asdict(group) for name, group in flight.groups.items()},
        "last_completed": dict(flight.last_completed),
        "collectives": [asdict(call) for call in flight.collectives],
    }
    return columns_of([{"rank": rank, "record": json.dumps(record, separators=(",", ":"))}])


def failure_rows(summary: RankSummary | None, rank: int, error: RankError | None) -> Columns:
    """One row a kind of failure that is told of a rank."""
    rows = []
    if summary is not None and summary.failure is not None:
        rows.append(_out_of_memory_row(summary))
    if summary is not None and summary.was_ended_by("error"):
        rows.append(_ending_row(summary))
    if error is not None:
        rows.append(_error_row(rank, error))
    return columns_of(rows)


def _out_of_memory_row(summary: RankSummary) -> dict[str, object]:
    failure = summary.failure
    assert failure is not None
    return {
        "rank": summary.rank,
        "kind": "out_of_memory",
        "cause": failure.cause,
        "failed_at": moment(failure.time_us),
        "step": failure.step,
        "requested_bytes": failure.requested_bytes,
        "message": summary.ending,
        **_place_cells(failure.place),
        "follows": False,
        "died": failure.died,
        "source": summary.source,
    }


def _ending_row(summary: RankSummary) -> dict[str, object]:
    return {
        "rank": summary.rank,
        "kind": "error",
        "cause": None,
        "failed_at": moment(summary.ended[1] if summary.ended else None),
        "step": None,
        "requested_bytes": None,
        "message": summary.ending,
        **_place_cells(None),
        "follows": None,
        "died": True,
        "source": summary.source,
    }


def _error_row(rank: int, error: RankError) -> dict[str, object]:
    return {
        "rank": rank,
        "kind": "error_file",
        "cause": None,
        "failed_at": moment(None if error.time_s is None else error.time_s * 1_000_000),
        "step": None,
        "requested_bytes": None,
        "message": error.message,
        **_place_cells(error.user_frame),
        "follows": error.follows,
        "died": True,
        "source": error.source,
    }


def finding_rows(comparison: Comparison) -> Columns:
    """One row a difference, and one a leak that ranks share."""
    shared = [
        {**_finding_cells(leak), "is_shared": True, "rank_count": None, "first_rank": None}
        for leak in comparison.shared
    ]
    differences = [
        {
            **_finding_cells(difference.finding),
            "is_shared": False,
            "rank_count": len(difference.ranks),
            "first_rank": min(difference.ranks, default=None),
        }
        for difference in comparison.differences
    ]
    return columns_of(
        [{"finding": index, **row} for index, row in enumerate((*differences, *shared))]
    )


def _finding_cells(finding: Finding) -> dict[str, object]:
    return {
        "cause": finding.id,
        "verdict": str(finding.verdict),
        "bytes": finding.bytes,
        **_place_cells(finding.place),
        "title": finding.title,
        "fix": finding.fix,
    }
