"""A memory snapshot (``torch.cuda.memory._dump_snapshot``) as a Trace.

The native core knows the value opcodes only and fills tables; here they become the columns of a
Trace.
Sources: torch/csrc/cuda/memory_snapshot.cpp and torch/cuda/memory.py (what a snapshot holds).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from vramlens._native import Snapshot
from vramlens.errors import InputError, NotARecording
from vramlens.read.members import NO_MEMBERS, Members
from vramlens.read.tables.device_traces import DeviceTables
from vramlens.read.tables.original_lines import with_original_lines
from vramlens.read.tables.side_columns import side_columns
from vramlens.read.values import as_dict
from vramlens.trace import Annotations, DeviceTrace, Meta, Stacks, Strings, Trace
from vramlens.units import counted, format_size


def read_snapshot(
    stream: BinaryIO,
    source: str,
    *,
    progress: Callable[[int], None] | None = None,
    members: Members | None = None,
) -> Trace:
    """The Trace of a snapshot; whatever is whole in it, with what is missing said in
    ``Trace.missing``.

    Args:
        stream: the pickle's bytes.
        source: what to call the file in messages.
        progress: called with the number of bytes read so far.
        members: what a ``.vram`` file holds beside the snapshot.

    Raises:
        UnsafeInput: it would run code or use memory without bound.
        NotARecording: a pickle of something else.
        InputError: nothing in it is whole.
    """
    snapshot = Snapshot(stream, progress)
    strings = Strings(snapshot["strings.bytes"], snapshot["strings.starts"])
    top = {
        strings[int(key)]: int(value)
        for key, value in zip(snapshot["top.keys"], snapshot["top.values"], strict=True)
    }
    _refuse_other_pickles(snapshot, top, source)
    settings = _settings(snapshot, top)
    tables = DeviceTables(snapshot, strings, settings)
    devices = tables.devices()
    host = tables.host()
    unknown_fields = side_columns(snapshot, strings, top)
    parts = members or NO_MEMBERS
    meta = parts.meta
    return Trace(
        source=source,
        stacks=with_original_lines(_stacks(snapshot, strings), unknown_fields),
        devices=devices,
        host=host,
        annotations=_annotations(snapshot, strings),
        pools=snapshot["pools.ids"].reshape(-1, 2),
        settings=settings,
        missing=(*missing_parts(snapshot, devices, settings, top, meta), *parts.missing),
        side_columns=unknown_fields,
        torch_version=meta.torch,
        device_name=meta.device_name,
        total_bytes=parts.totals,
        meta=meta,
        names=parts.names,
        ledgers=parts.ledgers,
        samples=parts.samples,
        owners=parts.owners,
        members=parts.present,
        start=_start(parts.start_state, source) if parts.start_state else None,
    )


def _stacks(snapshot: Snapshot, strings: Strings) -> Stacks:
    return Stacks(
        strings=strings,
        frame_file=snapshot["frames.file"],
        frame_function=snapshot["frames.name"],
        frame_line=snapshot["frames.line"],
        frames=snapshot["stacks.frames"],
        starts=snapshot["stacks.starts"].astype(np.int64),
    )


def _start(state: bytes, source: str) -> Trace | None:
    """The state when recording began; None where it cannot be read: it only helps."""
    try:
        return read_snapshot(io.BytesIO(state), source)
    except InputError:
        return None


def _refuse_other_pickles(snapshot: Snapshot, top: Mapping[str, int], source: str) -> None:
    if (
        len(snapshot["final.rows"])
        or snapshot["traces.count"].any()
        or snapshot["host_traces.count"].any()
    ):
        return
    if snapshot.truncated_at is not None:
        raise InputError(
            f"ends at byte {snapshot.truncated_at}, before the first whole segment or event;"
            " copy or record it again"
        )
    if {"segments", "device_traces"} & set(top):  # a snapshot, but of nothing
        return
    if {"entries", "pg_config"} <= set(top):
        raise NotARecording(
            "this is an NCCL flight record, not a memory snapshot;"
            f" vramlens explain {source} reads it"
        )
    raise NotARecording(
        "a pickle, but not a PyTorch memory snapshot (torch.cuda.memory._dump_snapshot makes one)"
    )


def _settings(snapshot: Snapshot, top: Mapping[str, int]) -> dict[str, Any]:
    return as_dict(snapshot.json(top["allocator_settings"])) if "allocator_settings" in top else {}


def _annotations(snapshot: Snapshot, strings: Strings) -> Annotations:
    rows = snapshot["annotations.rows"]
    stage = snapshot["annotations.stage"][rows]
    begins = {text for text in np.unique(stage).tolist() if strings[text] == "START"}
    return Annotations(
        name=snapshot["annotations.name"][rows],
        starts=np.isin(stage, list(begins)) if begins else np.zeros(len(rows), np.bool_),
        device=snapshot["annotations.device"][rows],
        time_us=snapshot["annotations.time_us"][rows],
    )


def missing_parts(
    snapshot: Snapshot,
    devices: Mapping[int, DeviceTrace],
    settings: Mapping[str, Any],
    top: Mapping[str, int],
    meta: Meta,
) -> Iterator[str]:
    """Yields the sentences: about the file, then about each device."""
    if snapshot.truncated_at is not None:
        yield (
            f"the file ends early, at byte {snapshot.truncated_at:,}, so the numbers are lower"
            " bounds. Copy it again, or read the original"
        )
        for device, trace in devices.items():
            if not trace.whole:
                yield f"device {device}: events after the first {len(trace.events):,}"
    if not len(snapshot["final.rows"]) and "segments" not in top and len(snapshot["traces.count"]):
        yield "the final state (segments), so memory from before the recording is unknown"
    overwritten = settings.get("trace_alloc_overflowed") is True
    for device, trace in devices.items():
        reason = _reason(overwritten, meta.wrapped.get(device))
        yield from _missing_of_device(device, trace, reason)


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
