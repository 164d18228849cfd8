"""Lifetimes, curves and counters of small histories whose every byte can be counted by hand."""

from __future__ import annotations

import pickle

import numpy as np

from support.oracle import MIB
from support.recordings import block, event, read, segment, snapshot
from vramlens.trace import BEFORE, DeviceTrace

BASE = 1 << 30


def device(
    events: list[dict[str, object]], segments: list[dict[str, object]] | None = None
) -> DeviceTrace:
    """The device of a history; without ``segments`` nothing but the events is known."""
    value = snapshot(events, segments or [])
    if segments is None:
        del value["segments"]
    return read(pickle.dumps(value)).devices[0]


def test_a_life() -> None:
    d = device(
        [
            event("segment_alloc", BASE, 2 * MIB),
            event("alloc", BASE, 1000),
            event("free_requested", BASE, 1000),
            event("alloc", BASE + 1024, 1),
            event("free_completed", BASE, 1000),
            event("free_requested", BASE + 1024, 1),
            event("free_completed", BASE + 1024, 1),
            event("segment_free", BASE, 2 * MIB),
        ]
    )
    assert d.allocations.born.tolist() == [1, 3]
    assert d.allocations.free_requested.tolist() == [2, 5]
    assert d.allocations.died.tolist() == [4, 6]
    assert d.allocations.requested_bytes.tolist() == [1000, 1]
    assert d.allocations.taken_bytes.tolist() == [1024, 512]
    assert d.allocations.segment.tolist() == [0, 0]
    assert d.allocation_of_event.tolist() == [-1, 0, 0, 1, 0, 1, 1, -1]
    assert d.requested_curve.tolist() == [0, 1000, 1000, 1001, 1, 1, 0, 0]
    assert d.reserved_curve.tolist() == [2 * MIB] * 7 + [0]
    assert (d.requested.peak_bytes, d.requested.peak_event) == (1001, 3)
    assert (d.allocated.peak_bytes, d.allocated.peak_event) == (1024, 1)  # given up at event 2
    assert (d.active.peak_bytes, d.active.peak_event) == (1536, 3)
    assert (d.reserved.peak_bytes, d.reserved.peak_event) == (2 * MIB, 0)
    assert d.allocations.alive_after(3).tolist() == [0, 1]
    assert d.allocations.alive_after(4).tolist() == [1]
    assert d.segments.alive_after(6).tolist() == [0]
    assert d.segments.alive_after(7).tolist() == []


def test_what_cannot_be_split_goes_along() -> None:
    """Large blocks keep a rest of up to 1 MiB; small ones split from 512 bytes on."""
    for size, requested, taken in [
        (20 * MIB, 19 * MIB, 20 * MIB),
        (20 * MIB, 19 * MIB - 512, 19 * MIB - 512),
        (2 * MIB, MIB, MIB),
        (2 * MIB, MIB + 1, 2 * MIB),
        (1024, 512, 512),
        (1536, 1024, 1024),
    ]:
        d = device([event("segment_alloc", BASE, size), event("alloc", BASE, requested)])
        assert d.allocations.taken_bytes.tolist() == [taken]


def test_mapped_ranges_are_one_piece() -> None:
    d = device(
        [
            event("segment_map", BASE, 20 * MIB),
            event("segment_map", BASE + 20 * MIB, 20 * MIB),
            event("alloc", BASE, 30 * MIB),
            event("free_completed", BASE, 30 * MIB),
            event("segment_unmap", BASE + 10 * MIB, 20 * MIB),
        ]
    )
    assert d.orphan_events == 0
    assert d.allocations.taken_bytes.tolist() == [30 * MIB]
    rows = zip(
        d.segments.born.tolist(),
        d.segments.died.tolist(),
        d.segments.address.tolist(),
        d.segments.size_bytes.tolist(),
        strict=True,
    )
    assert list(rows) == [
        (0, 4, BASE, 20 * MIB),
        (1, 4, BASE + 20 * MIB, 20 * MIB),
        (4, 5, BASE, 10 * MIB),
        (4, 5, BASE + 30 * MIB, 10 * MIB),
    ]
    assert d.reserved_curve.tolist() == [20 * MIB, 40 * MIB, 40 * MIB, 40 * MIB, 20 * MIB]


def test_what_was_there_before() -> None:
    state = [
        segment(
            BASE,
            2 * MIB,
            [block(BASE, 512, 100), block(BASE + 512, 1024, 900, "active_pending_free")],
        )
    ]
    d = device([event("free_requested", BASE + 512, 900)], state)
    assert d.allocations.born.tolist() == [BEFORE, BEFORE]
    assert d.allocations.free_requested.tolist() == [1, 0]
    assert (d.requested.base_bytes, d.allocated.base_bytes, d.active.base_bytes) == (
        1000,
        1536,
        1536,
    )
    assert d.requested.peak_event == BEFORE
    assert d.reserved.base_bytes == 2 * MIB


def test_a_free_without_its_request_counts_once() -> None:
    d = device(
        [event("alloc", BASE, 600), event("free_completed", BASE, 600), event("alloc", BASE, 600)]
    )
    assert d.allocated.peak_bytes == 1024
    assert d.allocations.free_requested.tolist() == [1, 3]


def test_an_address_that_is_used_again_ends_what_was_there() -> None:
    d = device([event("alloc", BASE, 600), event("alloc", BASE, 100)], [])
    assert d.allocations.died.tolist() == [1, 2]
    assert d.requested.peak_bytes == 600
    assert d.orphan_events > 0


def test_a_segment_that_is_made_again_ends_what_was_there() -> None:
    d = device([event("segment_alloc", BASE, 2 * MIB), event("segment_alloc", BASE, 20 * MIB)], [])
    assert d.segments.died.tolist() == [1, 2]
    assert d.reserved.peak_bytes == 20 * MIB
    assert d.orphan_events > 0


def test_columns_cannot_be_written() -> None:
    d = device([event("alloc", BASE, 600)])
    for column in (d.events.address, d.allocations.born, d.segments.born, d.allocation_of_event):
        assert not column.flags.writeable or not len(column)


def test_columns_outlive_the_trace() -> None:
    addresses = device([event("alloc", BASE + i * 512, 1) for i in range(10_000)]).events.address
    assert np.array_equal(addresses, BASE + 512 * np.arange(10_000, dtype=np.uint64))
