"""What a replay is fed: one device's events, which pool each allocation came from, and what was
there before.

Pools (docs/replay.md): a recording of PyTorch 2.12 and newer names them; before, segments that live
to the end name theirs, and a release outside any request that ``empty_cache`` did not make is the
end of a MemPool.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vramlens.ground.allocator_sizes import LARGE_SEGMENT, SMALL_REQUEST, SMALL_SEGMENT
from vramlens.replay.start_state import StartState, start_state_of
from vramlens.trace import NO_STACK, NO_TEXT, Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vramlens.trace import DeviceTrace, Trace

_EMPTY_CACHE = re.compile(r":(?:torch_cuda_)?empty_?[cC]ache$|::emptyCache\b")
_BY_EMPTY_CACHE, _OUTSIDE = 1, 2
_UNKNOWN_POOL = (-1, -1)  # of a MemPool that is gone
INSIDE_A_REQUEST = (
    Action.SEGMENT_ALLOC,
    Action.SEGMENT_FREE,
    Action.SEGMENT_MAP,
    Action.SEGMENT_UNMAP,
    Action.FREE_COMPLETED,
)
"""What a request may do before it ends, with an allocation or a failure."""


@dataclass(frozen=True, eq=False)
class Requests:
    """The input of one replay.

    Attributes:
        columns: the fields of vl_replay_input (native/vramlens.h).
        pools: the id of each pool, the default one first; (-1, -1) where only its end was seen.
        has_stacks: whether releases show who made them.
        warm: whether memory was there before the first event.
    """

    columns: dict[str, NDArray[np.generic]]
    pools: tuple[tuple[int, int], ...]
    has_stacks: bool
    warm: bool


def likely_requests(trace: Trace, device: DeviceTrace) -> Iterator[Requests]:
    """The ways to read a device's requests, the likeliest first: was a release a MemPool's end,
    or empty_cache?
    """
    first = requests_of(trace, device)
    if first.has_stacks:
        yield first
        return
    yield requests_of(trace, device, ends_of_pools=False)
    yield first


def requests_of(trace: Trace, device: DeviceTrace, *, ends_of_pools: bool = True) -> Requests:
    """The requests of one device.

    Args:
        ends_of_pools: whether a release outside any request, if empty_cache is not seen to have
            made it, is a MemPool's end; without stacks it may as well be an empty_cache.
    """
    events, rows, segments = device.events, device.allocations, device.segments
    count = len(events)
    releases = np.flatnonzero(
        (events.action == Action.SEGMENT_FREE) | (events.action == Action.SEGMENT_UNMAP)
    )
    emptied = np.zeros(count, np.uint8)
    emptied[releases] = _who_released(trace, device, releases)
    has_stacks = _releases_tell_who(device, releases[emptied[releases] != 0])
    pools: dict[tuple[int, int], int] = {(0, 0): 0}
    start = start_state_of(trace, device) if (segments.born < 0).any() else None
    segment_pool = _pools_of_segments(
        trace, device, pools, emptied if ends_of_pools else emptied[:0], start
    )
    inside = rows.segment != NO_TEXT
    row_pool = np.zeros(len(rows), np.uint32)
    row_pool[inside] = segment_pool[rows.segment[inside]]
    if events.has_pools:
        number = _numbers(trace, pools)
        named = rows.pool != NO_TEXT
        row_pool[named] = number[rows.pool[named]]
    base = np.flatnonzero(segments.born < 0)
    base_small = _small(device, base)
    columns: dict[str, NDArray[np.generic]] = {
        "action": events.action,
        "address": events.address,
        "size": events.size,
        "stream": events.stream,
        "emptied": emptied,
        "allocation": device.allocation_of_event,
        "released_pool": _pool_of_releases(device, segment_pool),
        "row_born": rows.born,
        "row_address": rows.address,
        "row_requested": rows.requested_bytes.view(np.uint64),
        "row_taken": _base_taken(device, start),
        "row_stream": rows.stream,
        "row_pool": row_pool,
        "row_scratch": (
            (rows.free_requested == rows.born + 1) & (rows.free_requested < count)
        ).astype(np.uint8),
        "row_pending": ((rows.born < 0) & (rows.free_requested < 0)).astype(np.uint8),
        "base_address": segments.address[base],
        "base_size": segments.size_bytes[base].view(np.uint64),
        "base_stream": segments.stream[base],
        "base_reservation": _reservations(device, base, segment_pool, base_small),
        "base_pool": segment_pool[base],
        "base_mapped": segments.expandable[base],
        "base_small": base_small,
    }
    return Requests(
        columns={name: np.ascontiguousarray(column) for name, column in columns.items()},
        pools=tuple(pools),
        has_stacks=has_stacks,
        warm=bool(len(base)) or bool(len(rows) and rows.born[0] < 0),
    )


def _who_released(
    trace: Trace, device: DeviceTrace, releases: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """One flag a release: made by empty_cache, or outside any request, or (0) inside one as far
    as can be seen.
    """
    if not len(releases):
        return np.zeros(0, np.uint8)
    events = device.events
    by_empty_cache = trace.stacks.within(_EMPTY_CACHE, events.stack[releases])
    # A request ends with an allocation or a failure; what is followed by anything else was no
    # request.
    inner = np.isin(events.action, INSIDE_A_REQUEST)
    ends = np.append(np.flatnonzero(~inner), len(events))
    end = ends[np.searchsorted(ends, releases)]
    action = np.append(events.action, Action.SNAPSHOT)[end]
    outside = (action != Action.ALLOC) & (action != Action.OOM)
    return np.where(by_empty_cache, _BY_EMPTY_CACHE, np.where(outside, _OUTSIDE, 0)).astype(
        np.uint8
    )


def _releases_tell_who(device: DeviceTrace, outside: NDArray[np.int64]) -> bool:
    """Whether releases that no request made have stacks of their own.

    Recorded with ``context="alloc"`` they show where their segment was asked for
    (CUDACachingAllocator.cpp: release_block), and nothing of who gave it back.
    """
    segments, stack = device.segments, device.events.stack
    died = np.flatnonzero(np.isin(segments.died, outside) & (segments.born >= 0))
    shown = stack[segments.died[died]]
    has_own_stack = (shown != NO_STACK) & (shown != stack[segments.born[died]])
    return bool(has_own_stack.any()) or not len(outside)


def _numbers(trace: Trace, pools: dict[tuple[int, int], int]) -> NDArray[np.uint32]:
    """The number of each row of ``Trace.pools``; new pools get the next."""
    ids = [(int(a), int(b)) for a, b in trace.pools]
    return np.array([pools.setdefault(pool_id, len(pools)) for pool_id in ids], np.uint32)


def _pools_of_segments(
    trace: Trace,
    device: DeviceTrace,
    pools: dict[tuple[int, int], int],
    emptied: NDArray[np.uint8],
    start: StartState | None,
) -> NDArray[np.uint32]:
    """The pool of every segment, as a number."""
    segments = device.segments
    named = segments.pool != NO_TEXT
    pool_of_segment = np.zeros(len(segments), np.uint32)
    if named.any():
        pool_of_segment[named] = _numbers_of_rows(trace, segments.pool[named], pools)
    early_pools = start.pool_of_segment if start is not None else {}
    for early, pool in early_pools.items():
        pool_of_segment[early] = pools.setdefault(pool, len(pools))
        named[early] = True
    outside = np.flatnonzero(emptied == _OUTSIDE)
    if not len(outside) or device.events.has_pools:
        return pool_of_segment
    gone = _pool_of_ended(pools)
    died = segments.died
    ended = np.isin(died, outside)
    pool_of_segment[ended & ~named] = gone
    if segments.expandable.any():
        _spread_over_reservations(device, pool_of_segment, ended & ~named, gone)
    return pool_of_segment


def _pool_of_ended(pools: dict[tuple[int, int], int]) -> int:
    """The number of the MemPool that ended.

    Blocks still alive keep their segments, which then name it: one such pool is that one.
    """
    mempools = [number for (first, second), number in pools.items() if first == 0 and second != 0]
    return mempools[0] if len(mempools) == 1 else pools.setdefault(_UNKNOWN_POOL, len(pools))


def _numbers_of_rows(
    trace: Trace, rows: NDArray[np.uint32], pools: dict[tuple[int, int], int]
) -> NDArray[np.uint32]:
    """The number of the pool in each of these rows of ``Trace.pools``; new pools get the next."""
    used = np.unique(rows)
    number = np.zeros(int(used.max()) + 1, np.uint32)
    for row in used.tolist():
        pool_id = int(trace.pools[row][0]), int(trace.pools[row][1])
        number[row] = pools.setdefault(pool_id, len(pools))
    return number[rows]


def _spread_over_reservations(
    device: DeviceTrace, pool_of_segment: NDArray[np.uint32], ended: NDArray[np.bool_], gone: int
) -> None:
    """Gives all mapped ranges of an expandable segment the pool of those that name it."""
    reservation = _reservation_of_ranges(device)
    mapped = device.segments.expandable != 0
    for segment_start in np.unique(reservation[mapped & (ended | (pool_of_segment != 0))]):
        ranges = mapped & (reservation == segment_start)
        named_pools = pool_of_segment[ranges]
        pool_of_segment[ranges] = (
            gone if not named_pools.any() else named_pools[named_pools != 0][0]
        )


def _reservation_of_ranges(device: DeviceTrace) -> NDArray[np.int64]:
    """Which expandable segment each mapped range belongs to: ranges that touch are of one.

    Until nothing of it is mapped: then it is gone (release_expandable_segment), and its addresses
    may come back as those of another pool or stream.
    """
    segments = device.segments
    reservations = np.full(len(segments), -1, np.int64)
    open_: list[
        list[int]
    ] = []  # number, lowest address, highest, stream, until when something is mapped
    mapped = np.flatnonzero(segments.expandable)
    for row in mapped[np.argsort(segments.born[mapped], kind="stable")].tolist():
        low = int(segments.address[row])
        high, stream = low + int(segments.size_bytes[row]), int(segments.stream[row])
        born, died = int(segments.born[row]), int(segments.died[row])
        open_ = [extent for extent in open_ if extent[4] > born]
        for extent in open_:
            if extent[3] == stream and low <= extent[2] and high >= extent[1]:
                extent[1:3] = min(low, extent[1]), max(high, extent[2])
                extent[4] = max(died, extent[4])
                reservations[row] = extent[0]
                break
        else:
            open_.append([row, low, high, stream, died])
            reservations[row] = row
    return reservations


def _pool_of_releases(device: DeviceTrace, segment_pool: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """By event: the pool of what a release gave back."""
    pool_of_event = np.zeros(len(device.events), np.uint32)
    died = device.segments.died
    released = np.flatnonzero(died < len(device.events))
    pool_of_event[died[released]] = segment_pool[released]
    return pool_of_event


def _small(device: DeviceTrace, base: NDArray[np.int64]) -> NDArray[np.uint8]:
    """By segment from before the recording, 1 where it is of a small pool."""
    segments, rows = device.segments, device.allocations
    small = (segments.expandable[base] == 0) & (segments.size_bytes[base] == SMALL_SEGMENT)
    largest = np.zeros(len(segments), np.int64)
    inside = rows.segment != NO_TEXT
    np.maximum.at(largest, rows.segment[inside], rows.taken_bytes[inside])
    mapped = segments.expandable[base] != 0
    # Without a block to tell: what is not a whole number of large handles is of a small pool.
    by_size = segments.size_bytes[base] % LARGE_SEGMENT != 0
    by_block = np.where(largest[base] > 0, largest[base] <= SMALL_REQUEST, by_size)
    return np.asarray(np.where(mapped, by_block, small), np.uint8)


def _reservations(
    device: DeviceTrace,
    base: NDArray[np.int64],
    segment_pool: NDArray[np.uint32],
    small: NDArray[np.uint8],
) -> NDArray[np.uint64]:
    """Where the expandable segment of each mapped range from before the recording begins, as far
    as can be seen.
    """
    segments = device.segments
    starts = segments.address[base].copy()
    mapped = np.flatnonzero(segments.expandable[base] != 0)
    pool, stream = (
        segment_pool[base[mapped]].astype(np.uint64),
        segments.stream[base[mapped]].astype(np.uint64),
    )
    _, group = np.unique(np.stack((pool, stream, small[mapped])), axis=1, return_inverse=True)
    group = group.reshape(-1)
    lowest = np.full(len(mapped), np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(lowest, group, starts[mapped])
    starts[mapped] = lowest[group]
    return starts


def _base_taken(device: DeviceTrace, state: StartState | None) -> NDArray[np.uint64]:
    """Bytes taken by row. What follows an early block, up to 1 MiB, is its own: no free block is so
    small.

    That holds in the large pool of cudaMalloc segments, where a rest is split off only if it is
    more than 1 MiB (DeviceCachingAllocator::should_split).
    """
    rows, segments = device.allocations, device.segments
    taken = rows.taken_bytes.copy()
    if state is not None:
        taken[rows.born < 0] = state.taken_bytes
        return taken.view(np.uint64)
    early = np.flatnonzero((rows.born < 0) & (rows.segment != NO_TEXT))  # by address
    if not len(early):
        return taken.view(np.uint64)
    segment = rows.segment[early]
    start = rows.address[early].view(np.int64)
    limit = segments.address[segment].view(np.int64) + segments.size_bytes[segment]
    following = np.append(start[1:], np.iinfo(np.int64).max)
    gap = np.minimum(following, limit) - start - taken[early]
    large = (segments.expandable[segment] == 0) & (taken[early] > SMALL_REQUEST)
    is_own_rest = (
        large & (gap > 0) & (gap <= SMALL_REQUEST) & (rows.died[early] < len(device.events))
    )
    taken[early[is_own_rest]] += gap[is_own_rest]
    return taken.view(np.uint64)
