"""Each device's trace, from a snapshot's tables of events, segments and blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vramlens._native import Column, NativeLifetimes, Snapshot
from vramlens.errors import UnsafeInput
from vramlens.read.tables.lifetime_columns import device_trace
from vramlens.read.values import MOST_DEVICES
from vramlens.trace import NO_TEXT, Action, DeviceTrace, Events, OutOfMemory, Strings

HOST = -1
_UNLIMITED = 2**64 - 1
_LARGEST_BLOCK = 2**43
# A block that a stream still uses: the documentation has one name, the writer another.
_PENDING_STATES = ("active_pending_free", "active_awaiting_free")


class DeviceTables:
    """A snapshot's tables, from which each device's trace is made."""

    def __init__(self, snapshot: Snapshot, strings: Strings, settings: Mapping[str, Any]) -> None:
        self._snapshot, self._settings = snapshot, settings
        state = snapshot["blocks.state"]
        named = {strings[text]: text for text in np.unique(state).tolist()}
        pending = [named[name] for name in _PENDING_STATES if name in named]
        self._block_pending = np.isin(state, pending).astype(np.uint8)
        self._block_live = np.isin(state, [*pending, named.get("active_allocated", NO_TEXT - 1)])

    def devices(self) -> dict[int, DeviceTrace]:
        """The trace of each device that has events or segments."""
        lists = len(self._snapshot["traces.count"])
        segment_device = self._snapshot["segments.device"][self._snapshot["final.rows"]]
        devices = {int(device) for device in np.unique(segment_device) if device >= 0}
        devices |= set(np.flatnonzero(self._snapshot["traces.count"]).tolist())
        _refuse_many_devices(max(len(devices), lists))
        return {
            device: self._device(
                device,
                "traces",
                "final",
                device if device < lists else None,
                segment_device == device,
            )
            for device in sorted(devices)
        }

    def host(self) -> tuple[DeviceTrace, ...]:
        """The traces of pinned host memory, one a list of events."""
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
        first = int(self._snapshot[f"{table}.first"][index])
        count = int(self._snapshot[f"{table}.count"][index])
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
        self, device: int, table: str, final: str, index: int | None, is_of_device: Column
    ) -> DeviceTrace:
        snapshot = self._snapshot
        rows = self._rows(table, index)
        events = self._events(rows)
        is_whole = index is None or bool(snapshot[f"{table}.whole"][index])
        has_whole_state = bool((snapshot[f"{final}.whole"] == 1).any())
        segment_places = np.flatnonzero(is_of_device)
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
        lifetimes = NativeLifetimes(
            {name: np.ascontiguousarray(column) for name, column in columns.items()},
            # Events must lead up to the final state; without events it is all there is, whole or
            # not.
            has_final_state=(is_whole and has_whole_state) or not len(events),
            max_split_size=_max_split_size(self._settings),
            roundup_divisions=_roundup_divisions(self._settings),
        )
        _refuse_impossible(lifetimes)
        pool_of = dict(
            zip(
                columns["segment_address"].tolist(),
                snapshot["segments.pool"][segments].tolist(),
                strict=True,
            )
        )
        return device_trace(
            device,
            events,
            lifetimes,
            pool_of,
            whole=is_whole,
            failures=self._failures(rows, events),
        )

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
        if len(rows) and not address.all():
            # Before PyTorch 2.1: blocks follow one another from the segment's start.
            ends = np.cumsum(size)
            not_empty = counts[counts > 0]
            firsts = np.repeat((ends - size)[np.cumsum(not_empty) - not_empty], not_empty)
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


def _refuse_impossible(lifetimes: NativeLifetimes) -> None:
    """No device has terabytes in one piece; sums of such sizes would not fit in 64 bits."""
    for name in ("allocations.requested", "allocations.taken", "segments.size"):
        sizes = lifetimes[name]
        if not len(sizes):
            continue
        largest, total = int(sizes.max()), float(sizes.sum(dtype=np.float64))
        if largest > _LARGEST_BLOCK or total > 2.0**62:
            raise UnsafeInput(f"it claims a block of {largest:,} bytes, more than any device has")


def _refuse_many_devices(count: int) -> None:
    if count > MOST_DEVICES:
        raise UnsafeInput(f"it claims {count:,} devices")


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
