"""Holes against a free list made by sorting, and against the free blocks that the snapshot
itself lists.
"""

from __future__ import annotations

import pickle
import random

import pytest

from support import oracle
from support.oracle import MIB
from support.recordings import DATA, block, data_of, event, read, segment, snapshot
from vramlens import Recording, load
from vramlens.analyses.attribution.attribution import attribute
from vramlens.analyses.memory.fragmentation import fragmentation_at, holes_at
from vramlens.trace import DeviceTrace

SMALL = [
    "recordings/gpt", "recordings/oom_fragmented", "recordings/oom_train", "recordings/oom_train_expandable",
    "recordings/graphs", "recordings/streams", "replay/recorded/streams__c2", "replay/recorded_h100/fuzz11cap__c1",
    "found/private_pools", "found/stranded_stream", "found/oom_expandable",
]  # fmt: skip


def opened(name: str) -> Recording:
    return load(DATA / f"{name}.pickle.xz")


def free_list(device: DeviceTrace, when: int) -> list[tuple[int, int]]:
    """Address and size of every free piece of the reserved memory, slowly."""
    segments, allocations = device.segments, device.allocations
    ranges = sorted(
        (
            int(segments.address[i]),
            int(segments.size_bytes[i]),
            bool(segments.expandable[i]),
            int(segments.stream[i]),
        )
        for i in range(len(segments))
        if segments.born[i] <= when < segments.died[i]
    )
    pieces: list[list[int]] = []
    for i, (start, size, mapped, stream) in enumerate(ranges):
        if i and mapped and ranges[i - 1][2:] == (True, stream) and pieces[-1][1] == start:
            pieces[-1][1] = start + size
        else:
            pieces.append([start, start + size])
    blocks = sorted(
        (int(allocations.address[i]), int(allocations.taken_bytes[i]))
        for i in range(len(allocations))
        if allocations.born[i] <= when < allocations.died[i]
    )
    found = []
    for start, end in pieces:
        at = start
        for address, taken in blocks:
            if start <= address < end:
                if address > at:
                    found.append((at, address - at))
                at = address + taken
        if at < end:
            found.append((at, end - at))
    return found


@pytest.mark.parametrize("name", SMALL)
def test_holes_are_what_a_free_list_has(name: str) -> None:
    device = opened(name).attribution().device
    last = len(device.events) - 1
    for when in [device.requested.peak_event, last, *random.Random(3).sample(range(last), 8)]:
        slow = free_list(device, when)
        holes = holes_at(device, when)
        assert sorted(holes.size_bytes.tolist()) == sorted(size for _, size in slow)
        assert holes.segment_bytes.sum() == device.reserved_curve[when]


@pytest.mark.parametrize(
    "name", [name for name in SMALL if not name.startswith("recordings/oom_train")]
)
def test_at_the_end_they_are_the_free_blocks_of_the_snapshot(name: str) -> None:
    recording = opened(name)
    device = recording.attribution().device
    free = [
        block["size"]
        for segment in oracle.load(data_of(name))["segments"]
        for block in segment["blocks"]
        if block["state"] == "inactive" and segment["device"] == device.device
    ]
    found = fragmentation_at(recording.attribution(), len(device.events) - 1)
    assert sorted(holes_at(device, len(device.events) - 1).size_bytes.tolist()) == sorted(free)
    assert (found.free_bytes, found.holes) == (sum(free), len(free))
    assert found.largest_free_bytes == max(free, default=0)
    assert found.exact


@pytest.mark.parametrize("name", SMALL)
def test_pools_and_pins_sum_up(name: str) -> None:
    view = opened(name).attribution()
    found = fragmentation_at(view, view.device.requested.peak_event)
    assert sum(pool.free_bytes for pool in found.by_pool) == found.free_bytes
    assert sum(pool.reserved_bytes for pool in found.by_pool) == found.reserved_bytes
    assert sum(pool.holes for pool in found.by_pool) == found.holes
    assert max(pool.largest_free_bytes for pool in found.by_pool) == found.largest_free_bytes
    assert (
        sum(pin.held_bytes for pin in found.pinned_by) + found.releasable_bytes == found.free_bytes
    )


def test_each_line_pins_what_its_oldest_blocks_keep() -> None:
    view = opened("recordings/oom_fragmented").attribution()
    found = fragmentation_at(view, len(view.device.events) - 1)
    (pin,) = found.pinned_by
    assert pin.place is not None
    assert (pin.place.line, pin.blocks, pin.bytes) == (251, 162, 162 * 4 * MIB)
    assert pin.held_bytes == found.free_bytes == 1312 * MIB


def test_the_oldest_block_of_a_segment_is_what_keeps_it() -> None:
    base, frames = 1 << 30, [[{"filename": f"{name}.py", "line": 1, "name": name}] for name in "ab"]
    events = [
        event("segment_alloc", base, 2 * MIB),
        event("alloc", base + MIB, 512, frames=frames[0]),
        event("alloc", base, 1024, frames=frames[1]),
    ]
    blocks = [
        block(base, 1024, 1024), block(base + 1024, MIB - 1024, 0, "inactive"),
        block(base + MIB, 512, 512), block(base + MIB + 512, MIB - 512, 0, "inactive"),
    ]  # fmt: skip
    trace = read(pickle.dumps(snapshot(events, [segment(base, 2 * MIB, blocks)])))
    pins = fragmentation_at(attribute(trace, trace.devices[0]), 2).pinned_by
    found = [
        (pin.place.file, pin.held_bytes, pin.bytes, pin.age_events)
        for pin in pins
        if pin.place is not None
    ]
    assert found == [("a.py", 2 * MIB - 1536, 512, 1), ("b.py", 0, 1024, 0)]


def test_private_pools_are_told_apart() -> None:
    view = opened("found/private_pools").attribution()
    found = fragmentation_at(view, len(view.device.events) - 1)
    pools = {pool.pool: pool for pool in found.by_pool if pool.pool not in ("small", "large")}
    mem_pool = pools["(0, 1)"]
    assert (mem_pool.reserved_bytes, mem_pool.free_bytes, mem_pool.holes) == (
        128 * MIB,
        80 * MIB,
        1,
    )


def test_before_the_first_event_there_is_nothing() -> None:
    found = fragmentation_at(opened("recordings/gpt").attribution(), -1)
    assert (found.reserved_bytes, found.free_bytes, found.holes, found.pinned_by) == (0, 0, 0, ())
