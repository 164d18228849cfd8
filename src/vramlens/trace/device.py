"""One device's part of a recording: its events, and what became of each allocation and segment."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vramlens.trace.events import Events, OutOfMemory

BEFORE = -1
"""In an event's place: before the first recorded event. "Never" is the number of events."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MemoryPieces:
    """One row a piece of memory, from one event to another.

    Attributes:
        born: the event that made it; BEFORE if it is older than the recording.
        died: the event at which its memory was free again; the number of events if never.
    """

    born: NDArray[np.int64]
    died: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.born)

    def alive_after(self, event: int) -> NDArray[np.int64]:
        """Rows of those that hold memory right after an event (pending frees included)."""
        return np.flatnonzero((self.born <= event) & (self.died > event))


@dataclass(frozen=True, eq=False, kw_only=True)
class Allocations(MemoryPieces):
    """One row an allocation: a lifetime of a block. Those from before the recording come first.

    Attributes:
        free_requested: the event at which the program gave it up; the number of events if never.
        address: bytes.
        requested_bytes: what the program asked for.
        taken_bytes: what the allocator handed out (rounded, and what could not be split off).
        stream: of the allocation.
        stack: id of the stack that asked for it, NO_STACK if none.
        segment: row of ``DeviceTrace.segments`` that holds it, 0xFFFFFFFF if unknown.
        pool: row of ``Trace.pools``; NO_TEXT where unknown.
    """

    free_requested: NDArray[np.int64]
    address: NDArray[np.uint64]
    requested_bytes: NDArray[np.int64]
    taken_bytes: NDArray[np.int64]
    stream: NDArray[np.uint64]
    stack: NDArray[np.uint32]
    segment: NDArray[np.uint32]
    pool: NDArray[np.uint32]

    def largest_of(self, rows: NDArray[np.int64]) -> int:
        """The first of these allocations (at least one) that the program asked most bytes for."""
        return int(rows[np.argmax(self.requested_bytes[rows])])

    def fullest(self, rows: NDArray[np.int64]) -> tuple[int, int]:
        """The first event at which most bytes of some allocations (at least one) are alive, and
        how many.
        """
        when = np.concatenate((self.born[rows], self.died[rows]))
        change = np.concatenate((self.requested_bytes[rows], -self.requested_bytes[rows]))
        order = np.argsort(when, kind="stable")
        running = np.cumsum(change[order])
        fullest_place = int(running.argmax())
        return int(when[order[fullest_place]]), int(running[fullest_place])


@dataclass(frozen=True, eq=False, kw_only=True)
class Segments(MemoryPieces):
    """One row a segment, or a mapped range of an expandable segment.

    Attributes:
        address, size_bytes, stream: of the segment.
        expandable: whether it is a mapped range of an expandable segment.
        pool: row of ``Trace.pools``; NO_TEXT where unknown.
    """

    address: NDArray[np.uint64]
    size_bytes: NDArray[np.int64]
    stream: NDArray[np.uint64]
    expandable: NDArray[np.uint8]
    pool: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Counter:
    """One of the allocator's byte counters over the run: before the first event, its maximum,
    the first event there.
    """

    base_bytes: int
    peak_bytes: int
    peak_event: int


@dataclass(frozen=True, eq=False)
class DeviceTrace:
    """What one device's allocator did.

    Attributes:
        device: its index as the program saw it; -1 for pinned host memory.
        events, allocations, segments: the columns.
        requested, allocated, active, reserved: the allocator's counters
            (``torch.cuda.memory_stats``).
        allocation_of_event: row of the allocation that an event is about; -1 for events about none.
        whole: whether its list of events was read to the end.
        orphan_events: events about something that the state before them does not hold; 0 when all
            is explained.
        missized: allocations whose taken_bytes the free space or the final state contradicts; 0
            when none.
        out_of_memory: every failed request.
    """

    device: int
    events: Events
    allocations: Allocations
    segments: Segments
    requested: Counter
    allocated: Counter
    active: Counter
    reserved: Counter
    allocation_of_event: NDArray[np.int32]
    whole: bool
    orphan_events: int
    missized: int
    out_of_memory: tuple[OutOfMemory, ...]

    @cached_property
    def clock_us(self) -> NDArray[np.int64]:
        """The time of each event, made to never run backward: the order of events is the truth,
        the time is not.
        """
        times = self.events.time_us
        return np.asarray(np.maximum.accumulate(times)) if len(times) else times

    @property
    def is_timed(self) -> bool:
        """Whether the events tell how much time passed between them."""
        clock = self.clock_us
        return bool(len(clock)) and int(clock[-1]) > int(clock[0])

    @cached_property
    def requested_curve(self) -> NDArray[np.int64]:
        """Requested bytes right after each event."""
        return self._running(self.requested, self.allocations, self.allocations.requested_bytes)

    @cached_property
    def reserved_curve(self) -> NDArray[np.int64]:
        """Reserved bytes right after each event."""
        return self._running(self.reserved, self.segments, self.segments.size_bytes)

    def _running(
        self, counter: Counter, pieces: MemoryPieces, sizes: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        change = np.zeros(len(self.events) + 1, np.int64)  # one more: what never dies
        is_recorded = pieces.born >= 0
        np.add.at(change, pieces.born[is_recorded], sizes[is_recorded])
        np.subtract.at(change, pieces.died, sizes)
        return counter.base_bytes + np.cumsum(change[:-1])
