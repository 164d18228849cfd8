"""Curves and clocks: the counters' own maxima, and times that keep the order of events."""

from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from support.recordings import block, event, read, segment, snapshot
from vramlens.analyses.attribution.attribution import Attribution, attribute
from vramlens.export.clock import clock_of, start_of
from vramlens.export.curves import changes, curves_of

COUNTERS = ("requested", "allocated", "active", "reserved")


def test_each_curve_reaches_what_the_counter_did(view: Attribution) -> None:
    curves, device = curves_of(view.device), view.device
    for name in COUNTERS:
        counter = getattr(device, name)
        curve = curves.get(name, curves["allocated"])
        assert max(counter.base_bytes, int(curve.max())) == counter.peak_bytes
        if counter.peak_event >= 0:
            assert curve[counter.peak_event] == counter.peak_bytes


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=20))
def test_changes_are_enough_to_draw_a_curve(values: list[int]) -> None:
    curve = np.array(values, np.int64)
    events = changes(curve)
    drawn = [int(curve[events[events <= place][-1]]) for place in range(len(values))]
    assert drawn == values
    assert all(
        values[a] != values[b] for a, b in zip(events.tolist(), events.tolist()[1:], strict=False)
    )


def with_times(times: list[int]) -> Attribution:
    """A device whose events, one block made and given back again and again, happened then."""
    actions = ("alloc", "free_requested", "free_completed")
    events = [event(actions[i % 3], 4096, 512, time_us=time) for i, time in enumerate(times)]
    alive = len(times) % 3 == 1
    blocks = [block(4096, 512, 512)] if alive else [block(4096, 512, 512, "inactive")]
    trace = read(pickle.dumps(snapshot(events, [segment(4096, 512, blocks)]), 4))
    return attribute(trace, trace.devices[0])


@settings(deadline=None)
@given(
    st.lists(
        st.integers(-(2**62), 2**62) | st.integers(10**15, 10**15 + 5), min_size=1, max_size=30
    )
)
def test_times_keep_the_order_of_events_and_their_microsecond(times: list[int]) -> None:
    device = with_times(times).device
    clock = clock_of(device, start_of([device]))
    assert (np.diff(clock.events_ns) >= 0).all()
    assert clock.events_ns[0] >= 0
    if clock.timed and max(times) < 2**52 and min(times) > 0:
        assert (clock.events_ns // 1000 == device.clock_us - clock.start_us).all()
        assert (np.diff(clock.events_ns) > 0).all()


def test_without_times_an_event_takes_a_microsecond() -> None:
    clock = clock_of(with_times([0, 0, 0, 0]).device, 0)
    assert not clock.timed
    assert clock.events_ns.tolist() == [0, 1000, 2000, 3000]


def test_before_is_the_beginning_and_never_is_the_end() -> None:
    clock = clock_of(with_times([10**15, 10**15 + 7]).device, 10**15)
    assert clock.at(np.array([-1, 0, 1, 2])).tolist() == [0, 0, 7000, 7000]
    assert clock.of_us(np.array([0, 10**15 + 3, 2**62])).tolist() == [0, 3000, 7000]


def test_thousands_of_events_fit_into_a_microsecond() -> None:
    device = with_times([10**15] * 3001 + [10**15 + 1] * 2).device
    clock = clock_of(device, start_of([device]))
    assert (clock.events_ns // 1000).tolist() == [0] * 3001 + [1] * 2
    assert (np.diff(clock.events_ns) >= 0).all()
    assert clock.events_ns[3000] == 999
