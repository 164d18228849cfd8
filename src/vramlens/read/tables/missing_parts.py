"""What a whole recording would hold and this one does not, one sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vramlens._native import Snapshot
from vramlens.trace import DeviceTrace, Meta
from vramlens.units import counted, format_size


def missing_parts(
    snapshot: Snapshot,
    devices: Mapping[int, DeviceTrace],
    settings: Mapping[str, Any],
    top: Mapping[str, int],
    meta: Meta | None,
) -> Iterator[str]:
    """Yields the sentences: about the file, then about each device."""
    if snapshot.truncated_at is not None:
        yield (
            f"the file ends early, at byte {snapshot.truncated_at:,}, so the numbers are lower bounds."
            " Copy it again, or read the original"
        )
        for device, trace in devices.items():
            if not trace.whole:
                yield f"device {device}: events after the first {len(trace.events):,}"
    if not len(snapshot["final.rows"]) and "segments" not in top and len(snapshot["traces.count"]):
        yield "the final state (segments), so memory from before the recording is unknown"
    overwritten = settings.get("trace_alloc_overflowed") is True
    for device, trace in devices.items():
        wrapped = meta.wrapped.get(device) if meta is not None else None
        yield from _missing_of_device(device, trace, _reason(overwritten, wrapped))


def _reason(overwritten: bool, wrapped: bool | None) -> str:
    """Why early events are not there; ``wrapped`` is what the recording says of its device."""
    if wrapped is False:
        return "before recording began"
    if overwritten or wrapped:
        return "overwritten by later events"
    return "before recording began or overwritten by later events"


def _missing_of_device(device: int, trace: DeviceTrace, reason: str) -> Iterator[str]:
    base_bytes = trace.requested.base_bytes
    if not len(trace.events):
        yield f"device {device}: events (nothing was recorded there, only the state at the end)"
    elif base_bytes or trace.reserved.base_bytes:
        blocks = int((trace.allocations.born < 0).sum())
        yield (
            f"device {device}: the earliest events, {reason};"
            f" {format_size(base_bytes)} in {counted(blocks, 'block')} were already in use"
        )
    if trace.orphan_events and trace.whole:
        contradicted = counted(trace.orphan_events, "event")
        yield f"device {device}: the rest contradicts {contradicted}; numbers are estimates"
