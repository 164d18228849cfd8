"""A slow, obvious caching allocator: cudaMalloc segments only, written from the rules and not from
native/replay_*.cpp.

It makes recordings of random requests. Every list is searched from end to end; nothing is kept
sorted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from support.recordings import block, event, segment, snapshot

MIB = 2**20
UNLIMITED = 2**64


@dataclass
class Piece:
    """A block: free, taken, or waiting for another stream."""

    start: int
    size: int
    requested: int = 0
    taken: bool = False
    waiting: bool = False


@dataclass
class Segment:
    start: int
    size: int
    stream: int
    small: bool
    pieces: list[Piece] = field(default_factory=list)

    @property
    def is_free(self) -> bool:
        return len(self.pieces) == 1 and not self.pieces[0].taken and not self.pieces[0].waiting


@dataclass
class SlowAllocator:
    """The classic allocator.

    Attributes:
        divisions: roundup_power2_divisions, one number for all sizes; 0: off.
        cap: what may be reserved.
        threshold: garbage_collection_threshold; 0: off.
        events: what was recorded.
    """

    max_split: int = UNLIMITED
    rounding: int = 20 * MIB
    large_segment: int = 20 * MIB
    divisions: int = 0
    cap: int = UNLIMITED
    threshold: float = 0.0
    searches: int = 0
    freed_at: dict[int, int] = field(default_factory=dict)
    next_address: int = 2**40
    segments: list[Segment] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    peak_reserved: int = 0
    peak_allocated: int = 0
    retries: int = 0
    failures: int = 0

    @property
    def reserved(self) -> int:
        return sum(s.size for s in self.segments)

    def rounded(self, size: int) -> int:
        if size < 512:
            return 512
        if self.divisions > 1 and size > 512 * self.divisions:
            power = 1
            while power * 2 <= size:
                power *= 2
            step = power // self.divisions
            at = power
            while at < size:
                at += step
            return at
        while size % 512:
            size += 1
        return size

    def segment_size(self, size: int) -> int:
        if size <= MIB:
            return 2 * MIB
        if size < 10 * MIB:
            return self.large_segment
        return -(-size // (2 * MIB)) * (2 * MIB)

    def free_pieces(self, stream: int, small: bool) -> list[tuple[int, int, Segment, Piece]]:
        found = [
            (piece.size, piece.start, one, piece)
            for one in self.segments
            if one.stream == stream and one.small == small
            for piece in one.pieces
            if not piece.taken and not piece.waiting
        ]
        return sorted(found, key=lambda item: item[:2])

    def find(self, size: int, stream: int) -> tuple[Segment, Piece] | None:
        if size > MIB:
            self.searches += 1
        for _, _, one, piece in self.free_pieces(stream, size <= MIB):
            if piece.size < size:
                continue
            if size < self.max_split <= piece.size:
                return None
            if size >= self.max_split and piece.size >= size + self.rounding:
                return None
            return one, piece
        return None

    def new_segment(self, size: int, stream: int) -> tuple[Segment, Piece] | None:
        whole = self.segment_size(size)
        if self.reserved + whole > self.cap:
            return None
        one = Segment(
            self.next_address, whole, stream, size <= MIB, [Piece(self.next_address, whole)]
        )
        self.next_address += whole
        self.segments.append(one)
        self.events.append(event("segment_alloc", one.start, whole, stream=stream))
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return one, one.pieces[0]

    def collect(self) -> None:
        """Gives back whole free large segments, the oldest first, down to the threshold's share
        of the limit.
        """
        if (
            not self.threshold
            or self.cap == UNLIMITED
            or self.reserved <= int(self.threshold * self.cap)
        ):
            return
        too_much = self.reserved - int(self.threshold * self.cap)
        ages = {
            one.start: self.searches - self.freed_at[one.start]
            for one in self.segments
            if not one.small and one.is_free
        }
        given_back, gave = 0, True
        while given_back < too_much and gave and ages:
            mean, gave = sum(ages.values()) / len(ages), False
            order = [one for one in self.segments if ages.get(one.start, -1) >= mean]
            for one in sorted(order, key=lambda s: (s.stream, s.size, s.start)):
                given_back, gave = given_back + one.size, True
                del ages[one.start]
                self.give_back(one)

    def give_back(self, one: Segment) -> None:
        self.segments.remove(one)
        self.events.append(event("segment_free", one.start, one.size, stream=one.stream))

    def release_some(self, size: int, stream: int) -> bool:
        if self.max_split == UNLIMITED:
            return False
        wanted = max(size, self.max_split)
        # all free pieces of the pool, in order of stream, size, address
        order = [
            item
            for s in sorted({one.stream for one in self.segments})
            for item in self.free_pieces(s, size <= MIB)
        ]
        at = 0
        while at < len(order) and (order[at][2].stream, order[at][0]) < (stream, wanted):
            at += 1
        if at < len(order) and order[at][2].stream == stream:
            self.give_back(order[at][2])
            return True
        released = 0
        while at > 0 and released < wanted:
            at -= 1
            size_here, _, one, _ = order[at]
            if size_here < self.max_split or one.stream != stream:
                break
            released += size_here
            self.give_back(one)
        return released >= wanted

    def release_all(self) -> None:
        for one in list(self.segments):
            for piece in list(one.pieces):
                if piece.waiting:
                    self.complete(piece.start)
        for small in (False, True):
            free = [one for one in self.segments if one.small == small and one.is_free]
            for one in sorted(free, key=lambda s: (s.stream, s.size, s.start)):
                self.give_back(one)

    def malloc(self, requested: int, stream: int = 0) -> int | None:
        size = self.rounded(requested)
        found = self.find(size, stream)
        if found is None:
            self.collect()
            found = self.new_segment(size, stream)
        if found is None and self.release_some(size, stream):
            found = self.new_segment(size, stream)
        if found is None:
            self.release_all()
            self.retries += 1
            found = self.new_segment(size, stream)
        if found is None:
            self.failures += 1
            self.events.append(event("oom", 0, size, stream=stream, device_free=0))
            return None
        one, piece = found
        rest = piece.size - size
        if rest >= 512 if one.small else size < self.max_split and rest > MIB:
            one.pieces.insert(one.pieces.index(piece) + 1, Piece(piece.start + size, rest))
            piece.size = size
        piece.taken, piece.requested = True, requested
        self.events.append(event("alloc", piece.start, requested, stream=stream))
        taken = sum(p.size for s in self.segments for p in s.pieces if p.taken)
        self.peak_allocated = max(self.peak_allocated, taken)
        return piece.start

    def locate(self, address: int) -> tuple[Segment, int]:
        for one in self.segments:
            for index, piece in enumerate(one.pieces):
                if piece.start == address:
                    return one, index
        raise AssertionError(hex(address))

    def free(self, address: int, *, later: bool = False) -> None:
        one, index = self.locate(address)
        piece = one.pieces[index]
        piece.taken, piece.waiting = False, True
        self.events.append(event("free_requested", address, piece.requested, stream=one.stream))
        if not later:
            self.complete(address)

    def complete(self, address: int) -> None:
        one, index = self.locate(address)
        piece = one.pieces[index]
        self.events.append(event("free_completed", address, piece.requested, stream=one.stream))
        piece.waiting = False
        merged: list[Piece] = []
        for each in one.pieces:
            last = merged[-1] if merged else None
            if last is not None and not (last.taken or last.waiting or each.taken or each.waiting):
                last.size += each.size
            else:
                merged.append(each)
        one.pieces = merged
        self.freed_at[one.start] = self.searches  # of interest only where the whole segment is free

    def empty_cache(self) -> None:
        before = len(self.events)
        self.release_all()
        for made in self.events[before:]:
            made["frames"] = [
                {"filename": "torch/cuda/memory.py", "line": 1, "name": "empty_cache"}
            ]

    def recording(self, conf: str) -> dict[str, Any]:
        final = [
            segment(
                one.start,
                one.size,
                [
                    block(
                        p.start,
                        p.size,
                        p.requested,
                        "active_allocated"
                        if p.taken
                        else "active_pending_free"
                        if p.waiting
                        else "inactive",
                    )
                    for p in one.pieces
                ],
                stream=one.stream,
            )
            for one in self.segments
        ]
        settings = {
            "PYTORCH_CUDA_ALLOC_CONF": conf,
            "max_split_size": -1 if self.max_split == UNLIMITED else self.max_split,
            "garbage_collection_threshold": self.threshold,
            "expandable_segments": False,
            "roundup_power2_divisions": {str(1 << slot): self.divisions for slot in range(16)},
        }
        return snapshot(self.events, final, allocator_settings=settings)
