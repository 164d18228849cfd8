"""Fragmentation: free bytes inside reserved segments, and the long-lived blocks that keep them
there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.finding import Place
from vramlens.ground.allocator_sizes import SMALL_REQUEST, SMALL_SEGMENT
from vramlens.trace import NO_TEXT, DeviceTrace


@dataclass(frozen=True, slots=True)
class Pin:
    """Live blocks of one line that keep partly free segments reserved.

    Attributes:
        place: the line; None for blocks without one.
        bytes: what the blocks take.
        blocks: how many.
        held_bytes: free bytes in the segments that they pin.
        age_events: how many events ago the oldest of them was born.
    """

    place: Place | None
    bytes: int
    blocks: int
    held_bytes: int
    age_events: int


@dataclass(frozen=True, slots=True)
class PoolFree:
    """Free bytes of one pool and stream: only requests of that pool and stream can use them.

    Attributes:
        pool: "small" or "large", or the id of a private pool as "(1, 0)".
        stream: the CUDA stream's number.
        reserved_bytes, free_bytes, largest_free_bytes: of its segments.
        holes: how many free blocks.
    """

    pool: str
    stream: int
    reserved_bytes: int
    free_bytes: int
    largest_free_bytes: int
    holes: int


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Free memory inside reserved segments right after one event.

    Attributes:
        event: when.
        reserved_bytes: in all segments.
        free_bytes: free and mapped, inside them.
        largest_free_bytes: the largest free block.
        holes: how many free blocks.
        releasable_bytes: of whole free segments, which the allocator can give back to the driver.
        pinned_by: the lines whose blocks keep partly free segments, those that hold most first.
        by_pool: the same figures by pool and stream.
        exact: False where block sizes are estimates.
    """

    event: int
    reserved_bytes: int
    free_bytes: int
    largest_free_bytes: int
    holes: int
    releasable_bytes: int
    pinned_by: tuple[Pin, ...]
    by_pool: tuple[PoolFree, ...]
    exact: bool


@dataclass(frozen=True, eq=False)
class Holes:
    """Free blocks right after an event, one row each, and the segments they lie in.

    Attributes:
        address, size_bytes: of each free block.
        segment: index into ``segments`` of each.
        segments: rows of the device's segments (of several that touch, the first).
        segment_bytes: size of each of ``segments``, with those that it touches.
        small: whether each of ``segments`` belongs to the small pool.
        blocks: rows of the live allocations.
        block_segment: index into ``segments`` of each live allocation; -1 where unknown.
    """

    address: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    segment: NDArray[np.int64]
    segments: NDArray[np.int64]
    segment_bytes: NDArray[np.int64]
    small: NDArray[np.bool_]
    blocks: NDArray[np.int64]
    block_segment: NDArray[np.int64]

    @property
    def ranges(self) -> NDArray[np.int64]:
        """All of them as (address, bytes)."""
        return np.stack((self.address, self.size_bytes), axis=1)


def holes_at(device: DeviceTrace, event: int) -> Holes:
    """The free blocks of a device right after an event."""
    segments, allocations = device.segments, device.allocations
    rows = segments.alive_after(event)
    rows = rows[np.argsort(segments.address[rows], kind="stable")]
    starts = segments.address[rows].astype(np.int64)
    sizes = segments.size_bytes[rows]
    # Mapped ranges of one expandable segment that touch are one piece of memory.
    mapped, stream = segments.expandable[rows] != 0, segments.stream[rows]
    joins = np.zeros(len(rows), np.bool_)
    if len(rows) > 1:
        joins[1:] = (
            (starts[1:] == starts[:-1] + sizes[:-1])
            & mapped[1:]
            & mapped[:-1]
            & (stream[1:] == stream[:-1])
        )
    first = np.flatnonzero(~joins)
    piece_bytes = np.add.reduceat(sizes, first) if len(first) else sizes
    piece_start = starts[first]

    live = allocations.alive_after(event)
    live = live[np.argsort(allocations.address[live], kind="stable")]
    address = allocations.address[live].astype(np.int64)
    taken = allocations.taken_bytes[live]
    piece = np.searchsorted(piece_start, address, side="right") - 1
    inside = (
        (piece >= 0) & (address < (piece_start + piece_bytes)[np.maximum(piece, 0)])
        if len(first)
        else piece >= 0
    )
    piece = np.where(inside, piece, -1)

    # The gaps: from each piece's start or each block's end to the next block's start or the piece's
    # end.
    begins = np.concatenate((piece_start, (address + taken)[inside]))
    owner = np.concatenate((np.arange(len(first)), piece[inside]))
    order = np.lexsort((begins, owner))
    begins, owner = begins[order], owner[order]
    nexts = np.concatenate((address[inside], piece_start + piece_bytes))
    next_owner = np.concatenate((piece[inside], np.arange(len(first))))
    gaps = nexts[np.lexsort((nexts, next_owner))] - begins
    real = gaps > 0
    return Holes(
        address=begins[real],
        size_bytes=gaps[real],
        segment=owner[real],
        segments=rows[first],
        segment_bytes=piece_bytes,
        small=_is_small(device, rows[first], piece, allocations.requested_bytes[live]),
        blocks=live,
        block_segment=piece,
    )


def _is_small(
    device: DeviceTrace,
    segments: NDArray[np.int64],
    piece: NDArray[np.int64],
    requested: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Small-pool segments are 2 MiB each; expandable ones are told by the blocks they hold."""
    size = device.segments.size_bytes[segments]
    small: NDArray[np.bool_] = size == SMALL_SEGMENT
    is_piece = piece >= 0
    small[piece[is_piece]] = requested[is_piece] <= SMALL_REQUEST
    return small


def fragmentation_at(view: Attribution, event: int) -> Fragmentation:
    """Free memory inside the reserved segments of a device right after an event."""
    device = view.device
    holes = holes_at(device, event)
    free_of = np.zeros(len(holes.segments), np.int64)
    np.add.at(free_of, holes.segment, holes.size_bytes)
    is_free_segment = free_of == holes.segment_bytes
    return Fragmentation(
        event=event,
        reserved_bytes=int(holes.segment_bytes.sum()),
        free_bytes=int(holes.size_bytes.sum()),
        largest_free_bytes=int(holes.size_bytes.max(initial=0)),
        holes=len(holes.size_bytes),
        releasable_bytes=int(free_of[is_free_segment].sum()),
        pinned_by=_pins(view, holes, free_of, event),
        by_pool=_by_pool(view, holes),
        exact=device.missized == 0 and device.orphan_events == 0,
    )


def _pins(
    view: Attribution, holes: Holes, free_of: NDArray[np.int64], event: int
) -> tuple[Pin, ...]:
    """By line, the live blocks in segments of which a part is free; the oldest block of a
    segment pins it.
    """
    allocations = view.device.allocations
    inside = holes.block_segment >= 0
    rows, piece = holes.blocks[inside], holes.block_segment[inside]
    partly = free_of[piece] > 0
    rows, piece = rows[partly], piece[partly]
    oldest_first = np.lexsort((allocations.born[rows], piece))
    leads = (
        np.append(True, np.diff(piece[oldest_first]) != 0) if len(rows) else np.zeros(0, np.bool_)
    )
    pinned_bytes = np.zeros(len(rows), np.int64)
    pinned_bytes[oldest_first[leads]] = free_of[piece[oldest_first[leads]]]
    frames, frame_of_row = np.unique(view.phases.frame[rows], return_inverse=True)
    taken, pinned_by_frame = np.zeros((2, len(frames)), np.int64)
    np.add.at(taken, frame_of_row, allocations.taken_bytes[rows])
    np.add.at(pinned_by_frame, frame_of_row, pinned_bytes)
    oldest = np.full(len(frames), event, np.int64)
    np.minimum.at(oldest, frame_of_row, allocations.born[rows])
    counts = np.bincount(frame_of_row, minlength=len(frames))
    pins = [
        Pin(
            place=view.place(int(frames[i])),
            bytes=int(taken[i]),
            blocks=int(counts[i]),
            held_bytes=int(pinned_by_frame[i]),
            age_events=event - int(oldest[i]),
        )
        for i in range(len(frames))
    ]
    return tuple(sorted(pins, key=lambda pin: (-pin.held_bytes, -pin.bytes)))


def _pool_names(view: Attribution, holes: Holes) -> list[str]:
    """By piece of reserved memory, the pool that it belongs to, as ``PoolFree.pool`` names it."""
    segments, pools = view.device.segments, view.trace.pools
    names = []
    for row, small in zip(holes.segments.tolist(), holes.small.tolist(), strict=True):
        pool = int(segments.pool[row])
        private = pool != NO_TEXT and pool < len(pools) and bool(pools[pool].any())
        if private:
            names.append(str(tuple(pools[pool].tolist())))
        else:
            names.append("small" if small else "large")
    return names


def _is_of_pools(view: Attribution, holes: Holes, wanted: Sequence[PoolFree]) -> NDArray[np.bool_]:
    """By piece of reserved memory, whether it belongs to one of some pools."""
    keys = {(pool.pool, pool.stream) for pool in wanted}
    streams = view.device.segments.stream[holes.segments].tolist()
    pairs = zip(_pool_names(view, holes), streams, strict=True)
    return np.array([pair in keys for pair in pairs], np.bool_)


def free_ranges(view: Attribution, event: int, pools: Sequence[PoolFree]) -> NDArray[np.int64]:
    """The free blocks of some pools right after an event, as (address, bytes)."""
    holes = holes_at(view.device, event)
    return holes.ranges[_is_of_pools(view, holes, pools)[holes.segment]]


def pool_rows(view: Attribution, event: int, pools: Sequence[PoolFree]) -> NDArray[np.int64]:
    """The allocations of some pools alive right after an event."""
    holes = holes_at(view.device, event)
    is_wanted = np.append(_is_of_pools(view, holes, pools), False)
    return np.sort(holes.blocks[is_wanted[holes.block_segment]])


def _by_pool(view: Attribution, holes: Holes) -> tuple[PoolFree, ...]:
    names = _pool_names(view, holes)
    pool_numbers: dict[tuple[str, int], int] = {}
    streams = view.device.segments.stream[holes.segments].tolist()
    group = np.array(
        [
            pool_numbers.setdefault(key, len(pool_numbers))
            for key in zip(names, streams, strict=True)
        ],
        np.int64,
    )
    reserved, free, largest = np.zeros((3, len(pool_numbers)), np.int64)
    np.add.at(reserved, group, holes.segment_bytes)
    np.add.at(free, group[holes.segment], holes.size_bytes)
    np.maximum.at(largest, group[holes.segment], holes.size_bytes)
    counts = np.bincount(group[holes.segment], minlength=len(pool_numbers))
    rows = [
        PoolFree(
            pool=name,
            stream=stream,
            reserved_bytes=int(reserved[i]),
            free_bytes=int(free[i]),
            largest_free_bytes=int(largest[i]),
            holes=int(counts[i]),
        )
        for (name, stream), i in pool_numbers.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.free_bytes))
