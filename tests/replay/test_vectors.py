"""Sizes and segments worked out by hand, through recordings of one or a few requests."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from support.recordings import block, event, read, segment, snapshot
from vramlens.replay import parse_settings, prove, replay_trace
from vramlens.replay.proof import Proven
from vramlens.units import MIB

BASE = 2**40


def one_request(requested: int) -> Proven:
    """A recording with one allocation under the default settings."""
    small = requested <= MIB
    size = (
        2 * MIB
        if small
        else 20 * MIB
        if requested < 10 * MIB
        else -(-requested // (2 * MIB)) * 2 * MIB
    )
    events = [event("segment_alloc", BASE, size), event("alloc", BASE, requested)]
    trace = read(
        pickle.dumps(snapshot(events, [segment(BASE, size, [block(BASE, size, requested)])]))
    )
    return prove(trace, trace.devices[0])


def run(proven: Proven, conf: str, **limits: int) -> dict[str, int]:
    native = parse_settings(conf).native(proven.recorded.version, **limits)
    return proven.replay.run(native, addresses=0, completion=0, seed=0)


@pytest.mark.parametrize(
    ("requested", "divisions", "taken"),
    [
        (1, 0, 512), (512, 0, 512), (513, 0, 1024), (1048576, 0, 1048576), (1048577, 0, 1049088),
        (1200, 4, 1536), (2049, 4, 2560), (4097, 8, 4608), (1228800, 4, 1310720), (3145729, 4, 3670016),
        (819200, 2, 1048576), (1000000, 4, 1048576), (5242885, 1, 5243392),
    ],
)  # fmt: skip
def test_round_size(requested: int, divisions: int, taken: int) -> None:
    conf = f"roundup_power2_divisions:{divisions}" if divisions else ""
    assert run(one_request(requested), conf)["peak_allocated"] == taken


@pytest.mark.parametrize(
    ("requested", "reserved"),
    [
        (MIB, 2), (MIB + 1, 20), (10485248, 20), (10485760, 10), (10485761, 12), (19 * MIB + MIB // 2, 20),
    ],
)  # fmt: skip
def test_segment_sizes(requested: int, reserved: int) -> None:
    assert run(one_request(requested), "")["peak_reserved"] == reserved * MIB


def test_a_rest_of_a_mebibyte_goes_along() -> None:
    assert run(one_request(19 * MIB + MIB // 2), "")["peak_allocated"] == 20 * MIB


def requests(*sizes: int, free: tuple[int, ...] = ()) -> Proven:
    """A recording of allocations that each got a segment of their own, and were then freed by
    number.
    """
    events: list[dict[str, Any]] = []
    final: dict[int, dict[str, Any]] = {}
    for number, size in enumerate(sizes):
        at, whole = BASE + number * 2**32, max(20 * MIB, -(-size // (2 * MIB)) * 2 * MIB)
        events += [event("segment_alloc", at, whole), event("alloc", at, size)]
        final[number] = segment(at, whole, [block(at, whole, size)])
    for number in free:
        at = BASE + number * 2**32
        events += [
            event("free_requested", at, sizes[number]),
            event("free_completed", at, sizes[number]),
        ]
        final[number] = segment(
            at, final[number]["total_size"], [block(at, final[number]["total_size"], 0, "inactive")]
        )
    trace = read(pickle.dumps(snapshot(events, list(final.values()))))
    return prove(trace, trace.devices[0])


def test_expandable_segments_grow_by_whole_handles() -> None:
    proven = requests(30 * MIB, 15 * MIB)
    found = run(proven, "expandable_segments:True")
    assert found["peak_reserved"] == 60 * MIB
    assert found["device_allocs"] == 2
    assert found["peak_allocated"] == 45 * MIB


def test_the_limit_counts_a_whole_segment_even_where_less_is_mapped() -> None:
    proven = requests(30 * MIB, 15 * MIB)
    assert run(proven, "expandable_segments:True", allowed_maximum=55 * MIB)["died_at"] == 3
    assert run(proven, "expandable_segments:True", allowed_maximum=60 * MIB)["died_at"] == -1
    assert run(proven, "expandable_segments:True", capacity=60 * MIB)["died_at"] == -1


def test_a_card_wakes_no_garbage_collection_but_a_cap_does() -> None:
    steps = []
    for number in range(4):
        at, size = BASE + number * 2**32, (30 + 2 * number) * MIB
        steps += [
            event("segment_alloc", at, size),
            event("alloc", at, size),
            event("free_requested", at, size),
            event("free_completed", at, size),
        ]
    final = [
        segment(
            BASE + n * 2**32,
            (30 + 2 * n) * MIB,
            [block(BASE + n * 2**32, (30 + 2 * n) * MIB, 0, "inactive")],
        )
        for n in range(4)
    ]
    trace = read(pickle.dumps(snapshot(steps, final)))
    proven = prove(trace, trace.devices[0])
    conf = "garbage_collection_threshold:0.3"
    assert run(proven, conf)["device_frees"] == 0
    assert run(proven, conf, capacity=1000 * MIB)["device_frees"] == 0
    assert run(proven, conf, allowed_maximum=150 * MIB)["device_frees"] > 0


def test_a_cap_that_bites_is_answered_with_the_first_request_that_fails() -> None:
    proven = requests(30 * MIB, 40 * MIB)
    answer = replay_trace(
        read(pickle.dumps(snapshot_of(30 * MIB, 40 * MIB))), confs=[""], cap_bytes=50 * MIB
    )
    assert proven.recorded.exact
    row = answer.what_if[0]
    assert (row.oom, row.oom_event, row.failed_requests) == (True, 3, 1)
    assert row.peak_reserved_bytes == 30 * MIB


def snapshot_of(*sizes: int) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    final = []
    for number, size in enumerate(sizes):
        at = BASE + number * 2**32
        events += [event("segment_alloc", at, size), event("alloc", at, size)]
        final.append(segment(at, size, [block(at, size, size)]))
    return snapshot(events, final)
