"""A memory snapshot (``torch.cuda.memory._dump_snapshot``) as a Trace.

The native core knows the value opcodes only and fills tables; here they become the columns of a
Trace.
Sources: torch/csrc/cuda/memory_snapshot.cpp and torch/cuda/memory.py (what a snapshot holds).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from vramlens._native import Column, Lifetimes, Snapshot
from vramlens.errors import InputError, NotARecording, UnsafeInput
from vramlens.read.values import MOST_DEVICES, as_dict
from vramlens.trace import (
    NO_TEXT,
    Action,
    Allocations,
    Annotations,
    Counter,
    DeviceTrace,
    Events,
    Meta,
    OutOfMemory,
    Segments,
    SideColumn,
    Stacks,
    Strings,
    Trace,
)
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from vramlens.read.members import Members

HOST = -1
_UNLIMITED = 2**64 - 1
_LARGEST_BLOCK = 2**43
# What a block is called while a stream still uses it: the documentation has one name, the writer
#     another.
_PENDING_STATES = ("active_pending_free", "active_awaiting_free")
_COUNTERS = ("requested", "allocated", "active", "reserved")
# Unknown fields are kept within bounds: a small file can name one large value a million times.
_MOST_SIDE_COLUMNS = 1000
_SIDE_CHARACTERS = 16 * 1024**2
_INT, _WIDE_INT, _WIDE_UINT, _FLOAT, _TEXT, _BYTES, _OBJECT = range(
    2, 9
)  # kinds of cells: native/value.h
_SECTIONS = {"segments", "device_traces", "host_segments", "host_traces", "external_annotations"}


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
    build = _Builder(snapshot, strings, settings)
    devices = build.devices()
    host = build.host()
    meta = members.meta if members else None
    return Trace(
        source=source,
        stacks=Stacks(
            strings=strings,
            frame_file=snapshot["frames.file"],
            frame_function=snapshot["frames.name"],
            frame_line=snapshot["frames.line"],
            frames=snapshot["stacks.frames"],
            starts=snapshot["stacks.starts"].astype(np.int64),
        ),
        devices=devices,
        host=host,
        annotations=_annotations(snapshot, strings),
        pools=snapshot["pools.ids"].reshape(-1, 2),
        settings=settings,
        missing=(
            *_missing(snapshot, devices, settings, top, meta),
            *(members.missing if members else ()),
        ),
        side_columns=tuple(_side_columns(snapshot, strings, top)),
        torch_version=meta.torch if meta else None,
        device_name=meta.device_name if meta else None,
        total_bytes=members.totals if members else {},
        meta=meta,
        names=members.names if members else None,
        ledgers=members.ledgers if members else None,
        samples=members.samples if members else None,
        owners=members.owners if members else None,
        members=members.present if members else (),
        start=_start(members.start_state, source) if members and members.start_state else None,
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
            f"ends at byte {snapshot.truncated_at}, before the first whole segment or event; copy or record it again"
        )
    if {"segments", "device_traces"} & set(top):  # a snapshot, but of nothing
        return
    if {"entries", "pg_config"} <= set(top):
        raise NotARecording(
            f"this is an NCCL flight record, not a memory snapshot; vramlens explain {source} reads it"
        )
    raise NotARecording(
        "a pickle, but not a PyTorch memory snapshot (torch.cuda.memory._dump_snapshot makes one)"
    )


def _refuse_impossible(life: Lifetimes) -> None:
    """No device has terabytes in one piece; sums of such sizes would not fit in 64 bits."""
    for name in ("allocations.requested", "allocations.taken", "segments.size"):
        sizes = life[name]
        if len(sizes) and (
            sizes.max() > _LARGEST_BLOCK or float(sizes.sum(dtype=np.float64)) > 2.0**62
        ):
            raise UnsafeInput(
                f"it claims a block of {int(sizes.max()):,} bytes: no device has that"
            )


def _refuse_many_devices(count: int) -> None:
    if count > MOST_DEVICES:
        raise UnsafeInput(f"it claims {count:,} devices")


def _settings(snapshot: Snapshot, top: Mapping[str, int]) -> dict[str, Any]:
    return as_dict(snapshot.json(top["allocator_settings"])) if "allocator_settings" in top else {}


def _max_split_size(settings: Mapping[str, Any]) -> int:
    size = settings.get("max_split_size")
    return size if isinstance(size, int) and size > 0 else _UNLIMITED


def _roundup_divisions(settings: Mapping[str, Any]) -> Column | None:
    """Divisions for sizes from 1 MiB, 2 MiB, ... 32 GiB on; None where nothing is set."""
    table = settings.get("roundup_power2_divisions")
    if not isinstance(table, dict):
        return None
    values = [table.get(str(1 << slot)) for slot in range(16)]
    divisions = np.array([v if isinstance(v, int) and v > 0 else 0 for v in values], np.uint64)
    return divisions if divisions.any() else None


class _Builder:
    """Makes a DeviceTrace of each list of events and the segments that belong to it."""

    def __init__(self, snapshot: Snapshot, strings: Strings, settings: Mapping[str, Any]) -> None:
        self._snapshot, self._settings = snapshot, settings
        state = snapshot["blocks.state"]
        named = {strings[text]: text for text in np.unique(state).tolist()}
        pending = [named[name] for name in _PENDING_STATES if name in named]
        self._block_pending = np.isin(state, pending).astype(np.uint8)
        self._block_live = np.isin(state, [*pending, named.get("active_allocated", NO_TEXT - 1)])

    def devices(self) -> dict[int, DeviceTrace]:
        lists = len(self._snapshot["traces.count"])
        segment_device = self._snapshot["segments.device"][self._snapshot["final.rows"]]
        found = {int(device) for device in np.unique(segment_device) if device >= 0}
        found |= set(np.flatnonzero(self._snapshot["traces.count"]).tolist())
        _refuse_many_devices(max(len(found), lists))
        return {
            device: self._device(
                device,
                "traces",
                "final",
                device if device < lists else None,
                segment_device == device,
            )
            for device in sorted(found)
        }

    def host(self) -> tuple[DeviceTrace, ...]:
        counts = self._snapshot["host_traces.count"]
        _refuse_many_devices(len(counts))
        all_of_them = np.ones(len(self._snapshot["host.rows"]), np.bool_)
        return tuple(
            self._device(
                HOST, "host_traces", "host", index, all_of_them if index == 0 else ~all_of_them
            )
            for index in np.flatnonzero(counts).tolist()
        )

    def _rows(self, table: str, index: int | None) -> slice | Column:
        if index is None:
            return slice(0, 0)
        first, count = (
            int(self._snapshot[f"{table}.first"][index]),
            int(self._snapshot[f"{table}.count"][index]),
        )
        if first >= 0:
            return slice(first, first + count)
        starts = self._snapshot[f"{table}.starts"]
        return self._snapshot[f"{table}.rows"][starts[index] : starts[index + 1]]

    def _events(self, rows: slice | Column) -> Events:
        total = len(self._snapshot["events.action"])

        def column(name: str) -> Column:
            values = self._snapshot[f"events.{name}"]
            if len(values) == 1 and total != 1:  # all rows are equal
                values = np.broadcast_to(values, total)
            return values[rows]

        names = ("action", "address", "size", "stream", "time_us", "stack")
        texts = ("compile_context", "user_metadata", "other_action", "pool")
        return Events(**{name: column(name) for name in names + texts})

    def _device(
        self, device: int, table: str, final: str, index: int | None, mine: Column
    ) -> DeviceTrace:
        snapshot = self._snapshot
        rows = self._rows(table, index)
        events = self._events(rows)
        whole = index is None or bool(snapshot[f"{table}.whole"][index])
        segment_places = np.flatnonzero(mine)
        segments = snapshot[f"{final}.rows"][segment_places]
        blocks, block_segment = self._blocks(final, segment_places)
        columns: dict[str, Column] = {
            "action": events.action,
            "address": events.address,
            "size": events.size,
            "stream": events.stream,
            "stack": events.stack,
            "segment_address": snapshot["segments.address"][segments],
            "segment_size": snapshot["segments.total_size"][segments],
            "segment_stream": snapshot["segments.stream"][segments],
            "segment_expandable": snapshot["segments.is_expandable"][segments],
            "block_address": blocks["address"],
            "block_size": blocks["size"],
            "block_requested": blocks["requested"],
            "block_stream": snapshot["segments.stream"][segments][block_segment],
            "block_stack": blocks["stack"],
            "block_pending": blocks["pending"],
        }
        life = Lifetimes(
            {name: np.ascontiguousarray(column) for name, column in columns.items()},
            # Events must lead up to the final state; without events it is all there is, whole or
            # not.
            has_final_state=(whole and bool((snapshot[f"{final}.whole"] == 1).any()))
            or not len(events),
            max_split_size=_max_split_size(self._settings),
            roundup_divisions=_roundup_divisions(self._settings),
        )
        _refuse_impossible(life)
        pool_of = dict(
            zip(
                columns["segment_address"].tolist(),
                snapshot["segments.pool"][segments].tolist(),
                strict=True,
            )
        )
        return _device_trace(device, events, life, whole, self._failures(rows, events), pool_of)

    def _blocks(self, final: str, segment_places: Column) -> tuple[dict[str, Column], Column]:
        """The live blocks of some final segments, and which of those segments each lies in."""
        snapshot = self._snapshot
        starts, all_rows = snapshot[f"{final}.block_starts"], snapshot[f"{final}.block_rows"]
        counts = (
            (starts[1:] - starts[:-1])[segment_places] if len(starts) > 1 else np.zeros(0, np.int64)
        )
        owner = np.repeat(np.arange(len(segment_places)), counts)
        offset = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = all_rows[starts[:-1][segment_places][owner] + offset] if len(owner) else all_rows[:0]
        size = snapshot["blocks.size"][rows]
        address = snapshot["blocks.address"][rows]
        if (
            len(rows) and not address.all()
        ):  # before PyTorch 2.1: blocks follow one another from the segment's start
            ends = np.cumsum(size)
            some = counts[counts > 0]
            firsts = np.repeat((ends - size)[np.cumsum(some) - some], some)
            base = snapshot["segments.address"][snapshot[f"{final}.rows"][segment_places]][owner]
            address = np.where(address == 0, base + (ends - size) - firsts, address)
        live = self._block_live[rows]
        rows, owner = rows[live], owner[live]
        requested = snapshot["blocks.requested_size"][rows]
        return {
            "address": address[live],
            "size": size[live],
            "requested": np.where(requested == 0, size[live], requested),
            "stack": snapshot["blocks.stack"][rows],
            "pending": self._block_pending[rows],
        }, owner

    def _failures(self, rows: slice | Column, events: Events) -> tuple[OutOfMemory, ...]:
        snapshot = self._snapshot
        free = dict(
            zip(
                snapshot["events.oom_row"].tolist(),
                snapshot["events.oom_device_free"].tolist(),
                strict=True,
            )
        )
        failed = np.flatnonzero(events.action == Action.OOM)
        row_of = (
            np.arange(rows.start, rows.stop)[failed] if isinstance(rows, slice) else rows[failed]
        )
        return tuple(
            OutOfMemory(
                event=int(event),
                size_bytes=int(events.size[event]),
                device_free_bytes=free.get(int(row)),
                stream=int(events.stream[event]),
                stack=int(events.stack[event]),
            )
            for event, row in zip(failed, row_of, strict=True)
        )


def _device_trace(
    device: int,
    events: Events,
    life: Lifetimes,
    whole: bool,
    failures: tuple[OutOfMemory, ...],
    pool_of_segment: Mapping[int, int],
) -> DeviceTrace:
    summary = life["summary"].tolist()
    base, peak, peak_event = summary[0:4], summary[4:8], summary[8:12]
    counters = {name: Counter(base[i], peak[i], peak_event[i]) for i, name in enumerate(_COUNTERS)}
    born = life["allocations.born"]
    segment = life["allocations.segment"]
    segment_address, segment_born = life["segments.address"], life["segments.born"]
    survives = life["segments.died"] == len(events)
    segment_pool = np.full(len(segment_address), NO_TEXT, np.uint32)
    ranges = np.array(sorted(pool_of_segment), np.uint64)
    if len(
        ranges
    ):  # mapped ranges lie inside the expandable segment that the final state shows as one
        place = np.maximum(np.searchsorted(ranges, segment_address, side="right") - 1, 0)
        pools = np.array([pool_of_segment[int(address)] for address in ranges], np.uint32)
        segment_pool = np.where(survives, pools[place], NO_TEXT).astype(np.uint32)
    if events.has_pools and len(segment_born):
        made = segment_born >= 0
        segment_pool[made] = events.pool[segment_born[made]]
    pool = np.full(len(born), NO_TEXT, np.uint32)
    inside = segment != NO_TEXT
    pool[inside] = segment_pool[segment[inside]]
    if events.has_pools:
        recorded = born >= 0
        pool[recorded] = events.pool[born[recorded]]
    return DeviceTrace(
        device=device,
        events=events,
        allocations=Allocations(
            born=born,
            free_requested=life["allocations.free_requested"],
            died=life["allocations.died"],
            address=life["allocations.address"],
            requested_bytes=life["allocations.requested"].view(np.int64),
            taken_bytes=life["allocations.taken"].view(np.int64),
            stream=life["allocations.stream"],
            stack=life["allocations.stack"],
            segment=segment,
            pool=pool,
        ),
        segments=Segments(
            born=segment_born,
            died=life["segments.died"],
            address=segment_address,
            size_bytes=life["segments.size"].view(np.int64),
            stream=life["segments.stream"],
            expandable=life["segments.mapped"],
            pool=segment_pool,
        ),
        allocation_of_event=life["allocation_of_event"],
        whole=whole,
        orphan_events=summary[12],
        missized=summary[13],
        out_of_memory=failures,
        **counters,
    )


def _annotations(snapshot: Snapshot, strings: Strings) -> Annotations:
    rows = snapshot["annotations.rows"]
    stage = snapshot["annotations.stage"][rows]
    begins = {i for i in np.unique(stage).tolist() if strings[i] == "START"}
    return Annotations(
        name=snapshot["annotations.name"][rows],
        starts=np.isin(stage, list(begins)) if begins else np.zeros(len(rows), np.bool_),
        device=snapshot["annotations.device"][rows],
        time_us=snapshot["annotations.time_us"][rows],
    )


def _missing(
    snapshot: Snapshot,
    devices: Mapping[int, DeviceTrace],
    settings: Mapping[str, Any],
    top: Mapping[str, int],
    meta: Meta | None,
) -> list[str]:
    """What a whole recording would hold and this one does not, one sentence each."""
    said = []
    if snapshot.truncated_at is not None:
        said.append(
            f"the file ends early, at byte {snapshot.truncated_at}: what came after it is lost"
        )
        for device, trace in devices.items():
            if not trace.whole:
                said.append(f"device {device}: events after the first {len(trace.events):,}")
    if not len(snapshot["final.rows"]) and "segments" not in top and len(snapshot["traces.count"]):
        said.append("the final state (segments): memory from before the recording cannot be known")
    overwritten = settings.get("trace_alloc_overflowed") is True
    for device, trace in devices.items():
        held = trace.requested.base_bytes
        blocks = int((trace.allocations.born < 0).sum())
        if not len(trace.events):
            said.append(
                f"device {device}: events (nothing was recorded there, only the state at the end)"
            )
        elif held or trace.reserved.base_bytes:
            wrapped = overwritten or (meta is not None and meta.wrapped.get(device))
            why = (
                "overwritten by later ones"
                if wrapped
                else "before recording began or overwritten by later ones"
            )
            if meta is not None and meta.wrapped.get(device) is False:
                why = "before recording began"
            said.append(
                f"device {device}: the earliest events ({why}): {format_size(held)} "
                f"in {counted(blocks, 'block')} were there"
            )
        if trace.orphan_events and trace.whole:
            said.append(
                f"device {device}: the rest contradicts {counted(trace.orphan_events, 'event')}; figures are estimates"
            )
    return said


def _side_columns(snapshot: Snapshot, strings: Strings, top: Mapping[str, int]) -> list[SideColumn]:
    found = []
    room = _SIDE_CHARACTERS
    for table in ("events", "segments", "blocks", "frames", "annotations"):
        keys = snapshot[f"{table}.extra_key"]
        order = np.argsort(keys, kind="stable")
        names, firsts = np.unique(keys[order], return_index=True)
        _refuse_many_fields(len(names), table)
        for key, here in zip(names.tolist(), np.split(order, firsts[1:]), strict=False):
            values, used = _values(snapshot, strings, snapshot[f"{table}.extra_value"][here], room)
            room -= used
            found.append(
                SideColumn(table, strings[key], snapshot[f"{table}.extra_row"][here], tuple(values))
            )
    others = {
        name: value
        for name, value in top.items()
        if name not in _SECTIONS and name != "allocator_settings"
    }
    _refuse_many_fields(len(others), "the top level")
    for name, value in others.items():
        values, used = _values(snapshot, strings, np.array([value], np.uint64), room)
        room -= used
        found.append(SideColumn("top", name, np.zeros(1, np.int64), tuple(values)))
    return found


def _values(
    snapshot: Snapshot, strings: Strings, cells: Column, room: int
) -> tuple[tuple[Any, ...], int]:
    """The Python values of some cells (native/value.h), and how many characters of ``room`` the
    nested ones used.
    """
    wide, floats = snapshot["values.wide"], snapshot["values.floats"].view(np.float64)
    shown: dict[int, Any] = {}
    used = 0
    for cell in np.unique(cells).tolist():
        kind, payload = cell & 15, cell >> 4
        if kind == _INT:
            shown[cell] = payload - (payload >> 59 << 60)
        elif kind in (_WIDE_INT, _WIDE_UINT):
            shown[cell] = int(wide[payload]) % 2**64 if kind == _WIDE_UINT else int(wide[payload])
        elif kind == _FLOAT:
            shown[cell] = float(floats[payload]) if np.isfinite(floats[payload]) else None
        elif kind in (_TEXT, _BYTES):
            shown[cell] = strings[payload]
        else:
            shown[cell] = value = snapshot.json(cell, min(1 << 10, room - used))
            if value is None and kind == _OBJECT:  # few are longer
                shown[cell] = value = snapshot.json(cell, min(1 << 20, room - used))
            used += (
                min(1 << 20, room - used) if value is None and kind == _OBJECT else len(repr(value))
            )
            used = min(used, room)
    return tuple(map(shown.__getitem__, cells.tolist())), used


def _refuse_many_fields(count: int, table: str) -> None:
    if count > _MOST_SIDE_COLUMNS:
        raise UnsafeInput(f"{table} has {count:,} unknown fields: no snapshot has")
