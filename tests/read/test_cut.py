"""Recordings that begin late or end early: the state rebuilt from what is left is the state of the
whole one.

Each recording is dumped again as PyTorch would have dumped it at another moment (the oracle plays
forward to there), and its beginning dropped as a ring buffer drops it. Two things cannot be had
back, and are named here: how many bytes a block took that is older than the window and freed inside
it (its rounded size is assumed), and which stack asked for it (that of its free is shown).
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from typing import Any

import pytest

from support import oracle
from support.oracle import Event, Lifetimes, lifetimes_of, rounded, tables_of
from support.recordings import ALL, collector_off, data_of, final_segments, read, snapshot
from vramlens.trace import BEFORE, DeviceTrace, Trace

CUTS = 4
DROPPED = (0, 0.1, 0.5, 0.9)
NAMES = [name for name in ALL if "million" not in name]


def windows(count: int, seed: str) -> Iterator[tuple[int, int]]:
    """First and last-plus-one event of what each shortened recording keeps."""
    choose = random.Random(seed)
    cuts = CUTS if count < 5_000 else 3
    for end in [*sorted(choose.randrange(1, count) for _ in range(cuts)), count]:
        for share in DROPPED if end == count or cuts == CUTS else (choose.choice(DROPPED),):
            yield int(end * share), end


def main_device(
    name: str,
) -> tuple[int, dict[str, Any], list[Event], list[oracle.Segment], dict[str, Any]]:
    """The busiest device of a recording: its index, the raw value, and the oracle's tables."""
    value = oracle.load(data_of(name))
    tables = tables_of(value)
    index = max(range(len(tables.traces)), key=lambda i: len(tables.traces[i]))
    return (
        index,
        value,
        tables.traces[index],
        [s for s in tables.segments if s.device == index],
        tables.settings,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_state_of_a_shortened_recording_is_that_of_the_whole(name: str) -> None:
    with collector_off():
        index, value, events, segments, settings = main_device(name)
        whole = lifetimes_of(events, segments, settings)
        for first, end in windows(len(events), name):
            state = lifetimes_of(events, segments, settings, until=end)
            raw = value["device_traces"][index][first:end]
            cut = snapshot(
                raw, final_segments(state), allocator_settings=value["allocator_settings"]
            )
            data = pickle.dumps(cut)
            trace = read(data)
            device = trace.devices[0]
            assert device.orphan_events == 0
            assert device.requested_curve.tolist() == whole.curves["requested"][first:end]
            assert device.reserved_curve.tolist() == whole.curves["reserved"][first:end]
            if first:
                assert device.requested.base_bytes == whole.curves["requested"][first - 1]
                assert device.reserved.base_bytes == whole.curves["reserved"][first - 1]
            for at in {first, (first + end) // 2, end - 1}:
                check_state(trace, device, whole, settings, first, at, end)


def check_state(
    trace: Trace,
    device: DeviceTrace,
    whole: Lifetimes,
    settings: dict[str, Any],
    first: int,
    at: int,
    end: int,
) -> None:
    """What lives right after event ``at`` (of the whole recording), in the whole and in the
    rest.
    """
    a = device.allocations
    mine = {int(a.address[row]): row for row in a.alive_after(at - first)}
    theirs = {b.address: b for b in whole.allocations if b.born <= at < b.died}
    assert set(mine) == set(theirs)
    for address, row in mine.items():
        b = theirs[address]
        assert (a.requested_bytes[row], a.stream[row]) == (b.requested, b.stream)
        assert a.born[row] == (b.born - first if b.born >= first else BEFORE)
        assert a.died[row] == min(b.died, end) - first
        given_up = min(b.free_requested, end) - first
        assert a.free_requested[row] == max(given_up, BEFORE)
        taken = int(a.taken_bytes[row])
        if (
            b.born < first and b.died < end
        ):  # freed inside the window: its block is gone, and its stack
            assert taken == rounded(b.requested, settings) <= b.taken
        else:
            assert taken == b.taken
            assert tuple(
                (f.file, f.line, f.function) for f in trace.stacks.of(int(a.stack[row]))
            ) == (b.stack or ())
    held = device.segments
    reserved = pieces(
        (int(held.address[i]), int(held.size_bytes[i])) for i in held.alive_after(at - first)
    )
    assert reserved == pieces((r.address, r.size) for r in whole.ranges if r.born <= at < r.died)


def pieces(ranges: Any) -> list[tuple[int, int]]:
    """Address ranges, those that touch joined: mapped ranges have no borders that anyone could
    know later.
    """
    joined: list[tuple[int, int]] = []
    for address, size in sorted(ranges):
        if joined and joined[-1][1] == address:
            joined[-1] = (joined[-1][0], address + size)
        else:
            joined.append((address, address + size))
    return joined


@pytest.mark.parametrize("name", NAMES[::2])
def test_missing_kinds_of_events(name: str) -> None:
    """``skip_actions`` leaves out kinds of events: figures are estimates then, and the Trace
    says so.
    """
    with collector_off():
        value = oracle.load(data_of(name))
        for skipped in [[a] for a in oracle.ACTIONS] + [
            ["alloc", "free_completed"],
            ["free_requested", "free_completed"],
            ["segment_alloc", "segment_map"],
        ]:
            kept = [
                [e for e in events if e["action"] not in skipped]
                for events in value["device_traces"]
            ]
            trace = read(pickle.dumps(value | {"device_traces": kept}))
            for device in trace.devices.values():
                for counter in (device.requested, device.allocated, device.active, device.reserved):
                    assert counter.peak_bytes >= counter.base_bytes >= 0
                if device.orphan_events:
                    assert any("contradict" in line for line in trace.missing)
                rows = device.allocations
                assert (rows.born <= rows.died).all()
                assert (rows.free_requested <= rows.died).all()


@pytest.mark.parametrize("name", NAMES[::3])
def test_every_missing_event_is_survived(name: str) -> None:
    """Events lost at random, the final state kept."""
    choose = random.Random(name)
    value = oracle.load(data_of(name))
    for share in (0.001, 0.1, 0.5, 0.9):
        kept = [[e for e in events if choose.random() > share] for events in value["device_traces"]]
        trace = read(pickle.dumps(value | {"device_traces": kept}))
        assert set(trace.devices) <= set(read(data_of(name)).devices)
