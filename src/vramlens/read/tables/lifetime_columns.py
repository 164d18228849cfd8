"""A device's trace, from what became of its allocations and segments."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vramlens._native import Column, NativeLifetimes
from vramlens.trace import (
    NO_TEXT,
    Allocations,
    Counter,
    DeviceTrace,
    Events,
    OutOfMemory,
    Segments,
)

_COUNTERS = ("requested", "allocated", "active", "reserved")


def device_trace(
    device: int,
    events: Events,
    lifetimes: NativeLifetimes,
    pool_of_segment: Mapping[int, int],
    *,
    whole: bool,
    failures: tuple[OutOfMemory, ...],
) -> DeviceTrace:
    """The trace of one device.

    Args:
        pool_of_segment: by the address of a segment that the final state shows.
        whole: whether the list of events was read to its end.
        failures: its failed requests.
    """
    summary = lifetimes.summary
    counters = {
        name: Counter(
            summary[f"base_{name}"], summary[f"peak_{name}"], summary[f"peak_{name}_event"]
        )
        for name in _COUNTERS
    }
    segment_pool = _segment_pools(events, lifetimes, pool_of_segment)
    return DeviceTrace(
        device=device,
        events=events,
        allocations=Allocations(
            born=lifetimes["allocations.born"],
            free_requested=lifetimes["allocations.free_requested"],
            died=lifetimes["allocations.died"],
            address=lifetimes["allocations.address"],
            requested_bytes=lifetimes["allocations.requested"].view(np.int64),
            taken_bytes=lifetimes["allocations.taken"].view(np.int64),
            stream=lifetimes["allocations.stream"],
            stack=lifetimes["allocations.stack"],
            segment=lifetimes["allocations.segment"],
            pool=_allocation_pools(events, lifetimes, segment_pool),
        ),
        segments=Segments(
            born=lifetimes["segments.born"],
            died=lifetimes["segments.died"],
            address=lifetimes["segments.address"],
            size_bytes=lifetimes["segments.size"].view(np.int64),
            stream=lifetimes["segments.stream"],
            expandable=lifetimes["segments.mapped"],
            pool=segment_pool,
        ),
        allocation_of_event=lifetimes["allocation_of_event"],
        whole=whole,
        orphan_events=summary["orphans"],
        missized=summary["missized"],
        out_of_memory=failures,
        **counters,
    )


def _segment_pools(
    events: Events, lifetimes: NativeLifetimes, pool_of_segment: Mapping[int, int]
) -> Column:
    """By segment its pool: as its own event says, else as the final state shows it."""
    address, born = lifetimes["segments.address"], lifetimes["segments.born"]
    segment_pool = np.full(len(address), NO_TEXT, np.uint32)
    ranges = np.array(sorted(pool_of_segment), np.uint64)
    if len(ranges):
        # Mapped ranges lie inside the expandable segment that the final state shows as one.
        place = np.maximum(np.searchsorted(ranges, address, side="right") - 1, 0)
        pools = np.array([pool_of_segment[int(start)] for start in ranges], np.uint32)
        survives = lifetimes["segments.died"] == len(events)
        segment_pool = np.where(survives, pools[place], NO_TEXT).astype(np.uint32)
    if events.has_pools and len(born):
        is_recorded = born >= 0
        segment_pool[is_recorded] = events.pool[born[is_recorded]]
    return segment_pool


def _allocation_pools(events: Events, lifetimes: NativeLifetimes, segment_pool: Column) -> Column:
    """By allocation its pool: as its own event says, else that of its segment."""
    born, segment = lifetimes["allocations.born"], lifetimes["allocations.segment"]
    pool = np.full(len(born), NO_TEXT, np.uint32)
    is_inside = segment != NO_TEXT
    pool[is_inside] = segment_pool[segment[is_inside]]
    if events.has_pools:
        is_recorded = born >= 0
        pool[is_recorded] = events.pool[born[is_recorded]]
    return pool
