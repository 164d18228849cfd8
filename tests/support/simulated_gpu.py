"""A GPU's memory that never was: PyTorch's caching allocator in small, which records its events as
PyTorch does.

It knows the rules that give a recording its form (blocks of 512 bytes, small and large pools, best
fit, splitting, merging, cached segments, their release before a failure, the limit) and nothing of
what reads recordings.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import Any

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SMALL_REQUEST, SMALL_SEGMENT, LARGE_SEGMENT, LARGE_REQUEST = MIB, 2 * MIB, 20 * MIB, 10 * MIB
Frame = dict[str, Any]
Line = tuple[str, int]
"""A file and a line of it."""
Stack = tuple[Frame, ...]
"""Innermost frame first."""


class OutOfMemory(Exception):
    """The simulated GPU has no room for a request."""


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment."""

    address: int
    size: int
    segment: Segment
    requested: int = 0
    free: bool = True
    stack: Stack = ()


@dataclass(slots=True, eq=False)
class Segment:
    """Memory of the GPU that the allocator holds."""

    address: int
    size: int
    small: bool
    stack: Stack
    blocks: list[Block] = field(default_factory=list)


class SimulatedGpu:
    """Memory, and what the allocator recorded about it.

    Attributes:
        events: as in ``device_traces``.
        marks: as in ``external_annotations``.
        clock_us: now.
    """

    def __init__(self, start_us: int, limit: int, *, power2_divisions: int = 0) -> None:
        self.events: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []
        self.clock_us = start_us
        self.limit, self.power2_divisions = limit, power2_divisions
        self.reserved = self.peak_reserved = 0
        self.requested = self.peak_requested = 0
        self._peak_event = 0
        self.failed: tuple[int, int] | None = None
        self._segments: list[Segment] = []
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}
        self._next_address = 0x7F2000000000

    @property
    def largest_segment(self) -> int:
        """The bytes of the largest segment that the allocator holds."""
        return max(segment.size for segment in self._segments)

    def mark(self, name: str, stage: str) -> None:
        self.clock_us += 3
        entry = {"stage": stage, "name": name, "device": 0, "time_us": self.clock_us}
        self.marks.append(entry)

    def wait(self, microseconds: int) -> None:
        self.clock_us += microseconds

    def alloc(self, requested: int, stack: Stack) -> Block:
        size = self._rounded(requested)
        small = size <= SMALL_REQUEST
        block = self._best_fit(size, small) or self._new_segment(requested, size, small, stack)
        self._split(block, size)
        block.free, block.requested, block.stack = False, requested, stack
        self._event("alloc", block.address, requested, stack)
        self._count(requested)
        return block

    def free(self, block: Block) -> None:
        self._event("free_requested", block.address, block.requested, ())
        self._event("free_completed", block.address, block.requested, ())
        self._count(-block.requested)
        block.free, block.requested, block.stack = True, 0, ()
        self._merge(block)

    def _rounded(self, requested: int) -> int:
        size = max(512, -(-requested // 512) * 512)
        if not self.power2_divisions or size <= 2 * MIB:
            return size
        power = 1 << (size.bit_length() - 1)
        part = power // self.power2_divisions
        return -(-size // part) * part

    def _best_fit(self, size: int, small: bool) -> Block | None:
        pool = self._free[small]
        for place, (length, _, block) in enumerate(pool):
            if length >= size:
                del pool[place]
                return block
        return None

    def _new_segment(self, requested: int, size: int, small: bool, stack: Stack) -> Block:
        length = SMALL_SEGMENT if small else LARGE_SEGMENT
        if not small and size >= LARGE_REQUEST:
            length = -(-size // SMALL_SEGMENT) * SMALL_SEGMENT
        if self.reserved + length > self.limit:
            self._release_cached()
        if self.reserved + length > self.limit:
            room = self.limit - self.reserved
            self._event("oom", None, requested, stack, device_free=room)
            self.failed = (requested, room)
            raise OutOfMemory
        segment = Segment(self._next_address, length, small, stack)
        self._next_address += length + SMALL_SEGMENT
        block = Block(segment.address, length, segment)
        segment.blocks.append(block)
        self._segments.append(segment)
        self.reserved += length
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self._event("segment_alloc", segment.address, length, stack)
        return block

    def _release_cached(self) -> None:
        for segment in [s for s in self._segments if len(s.blocks) == 1 and s.blocks[0].free]:
            self._forget(segment.blocks[0])
            self._segments.remove(segment)
            self.reserved -= segment.size
            self._event("segment_free", segment.address, segment.size, ())

    def _split(self, block: Block, size: int) -> None:
        remaining = block.size - size
        least = 512 if block.segment.small else SMALL_REQUEST + 1
        if remaining < least:
            return
        rest = Block(block.address + size, remaining, block.segment)
        block.size = size
        blocks = block.segment.blocks
        blocks.insert(blocks.index(block) + 1, rest)
        self._offer(rest)

    def _merge(self, block: Block) -> None:
        blocks = block.segment.blocks
        place = blocks.index(block)
        if place + 1 < len(blocks) and blocks[place + 1].free:
            after = blocks.pop(place + 1)
            self._forget(after)
            block.size += after.size
        if place and blocks[place - 1].free:
            before = blocks.pop(place - 1)
            self._forget(before)
            block.address, block.size = before.address, block.size + before.size
        self._offer(block)

    def _offer(self, block: Block) -> None:
        insort(self._free[block.segment.small], (block.size, block.address, block))

    def _forget(self, block: Block) -> None:
        self._free[block.segment.small].remove((block.size, block.address, block))

    def _event(
        self, action: str, address: int | None, size: int, stack: Stack, **more: int
    ) -> None:
        self.clock_us += 2
        entry: dict[str, Any] = {"action": action, **more}
        if address is not None:
            entry["addr"] = address
        entry |= {"size": size, "stream": 0, "time_us": self.clock_us, "compile_context": "N/A"}
        self.events.append(entry | {"user_metadata": "", "frames": list(stack)})

    def _count(self, change: int) -> None:
        self.requested += change
        if self.requested > self.peak_requested:
            self.peak_requested = self.requested
            self._peak_event = len(self.events)

    def bytes_at_peak(self, line: Line) -> int:
        """The bytes alive at the highest moment whose stack goes through a line."""
        return self._bytes_after(self._peak_event, line)

    def bytes_at_end(self, line: Line) -> int:
        """The bytes alive at the end whose stack goes through a line."""
        return self._bytes_after(len(self.events), line)

    def _bytes_after(self, events: int, line: Line) -> int:
        live: dict[int, int] = {}
        for event in self.events[:events]:
            if event["action"] == "alloc" and goes_through(event["frames"], line):
                live[event["addr"]] = event["size"]
            elif event["action"] == "free_completed":
                live.pop(event["addr"], None)
        return sum(live.values())

    def snapshot(self, settings: dict[str, Any], marks: bool = True) -> dict[str, Any]:
        """What ``torch.cuda.memory._snapshot()`` would give."""
        return {
            "segments": [self._segment_entry(segment) for segment in self._segments],
            "device_traces": [self.events],
            "allocator_settings": settings,
            "external_annotations": self.marks if marks else [],
        }

    def _segment_entry(self, segment: Segment) -> dict[str, Any]:
        blocks = [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": "inactive" if block.free else "active_allocated",
                "frames": list(block.stack),
            }
            for block in segment.blocks
        ]
        used = sum(block.size for block in segment.blocks if not block.free)
        return {
            "device": 0,
            "address": segment.address,
            "total_size": segment.size,
            "allocated_size": used,
            "active_size": used,
            "requested_size": sum(block.requested for block in segment.blocks),
            "stream": 0,
            "segment_type": "small" if segment.small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": list(segment.stack),
            "blocks": blocks,
        }


def goes_through(frames: list[Frame], line: Line) -> bool:
    return any((frame["filename"], frame["line"]) == line for frame in frames)
