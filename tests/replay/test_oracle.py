"""The native simulator against the slow one of replay_oracle.py, on random requests."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.recordings import read
from support.replay_oracle import MIB, UNLIMITED, SlowAllocator
from vramlens._layout import AddressOrder
from vramlens.replay import prove
from vramlens.replay.what_if import replayed_curve

EDGES = [
    1,
    511,
    512,
    513,
    MIB - 1,
    MIB,
    MIB + 1,
    10 * MIB - 1,
    10 * MIB,
    10 * MIB + 1,
    19 * MIB,
    20 * MIB,
    21 * MIB,
]
SIZES = st.one_of(
    st.sampled_from(EDGES),
    st.integers(1, 4096),
    st.integers(1, 3 * MIB),
    st.integers(1, 64 * MIB),
    st.sampled_from([32, 64, 96]).map(lambda m: m * MIB),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES, st.sampled_from([0, 0, 0, 7])),
        st.tuples(st.just("free"), st.integers(0, 10**6), st.just(0)),
        st.tuples(st.just("later"), st.integers(0, 10**6), st.just(0)),
        st.tuples(st.just("complete"), st.integers(0, 10**6), st.just(0)),
        st.tuples(st.just("empty_cache"), st.just(0), st.just(0)),
    ),
    min_size=1,
    max_size=80,
)
CONFS = {
    "": {},
    "max_split_size_mb:32": {"max_split": 32 * MIB},
    "max_split_size_mb:20,max_non_split_rounding_mb:64": {
        "max_split": 20 * MIB,
        "rounding": 64 * MIB,
    },
    "roundup_power2_divisions:4": {"divisions": 4},
    "roundup_power2_divisions:8,max_split_size_mb:64": {"divisions": 8, "max_split": 64 * MIB},
    "large_segment_size_mb:40": {"large_segment": 40 * MIB, "rounding": 40 * MIB},
}


def perform(made: SlowAllocator, steps: list[tuple[str, int, int]]) -> list[tuple[int, int]]:
    """After each of the requests, its event and what is reserved.

    Allocations are named by their order, so that other settings see the same requests.
    """
    after: list[tuple[int, int]] = []
    live: list[int] = []
    waiting: list[int] = []
    addresses: list[int | None] = []
    for what, number, stream in steps:
        if what == "malloc":
            # What process_events sees as done is freed before the request.
            addresses.append(made.malloc(number, stream))
            waiting = [
                i
                for i in waiting
                if any(
                    p.waiting and p.start == addresses[i] for s in made.segments for p in s.pieces
                )
            ]
            if addresses[-1] is not None:
                live.append(len(addresses) - 1)
        elif what in ("free", "later") and live:
            index = live.pop(number % len(live))
            address = addresses[index]
            assert address is not None
            made.free(address, later=what == "later")
            if what == "later":
                waiting.append(index)
        elif what == "complete" and waiting:
            address = addresses[waiting.pop(number % len(waiting))]
            assert address is not None
            made.complete(address)
        elif what == "empty_cache":
            made.empty_cache()
            waiting.clear()
        after.append((len(made.events) - 1, made.reserved))
    return after


@pytest.mark.parametrize("conf", CONFS)
@given(steps=STEPS, cap=st.sampled_from([UNLIMITED, 64 * MIB, 150 * MIB]))
@settings(max_examples=60, deadline=None)
def test_every_recording_of_the_slow_allocator_replays_exactly(
    conf: str, steps: list[tuple[str, int, int]], cap: int
) -> None:
    made = SlowAllocator(**CONFS[conf], cap=cap)
    perform(made, steps)
    if not any(e["action"] == "alloc" for e in made.events):
        return
    trace = read(pickle.dumps(made.recording(conf)))
    for made_by in made.events:
        made_by.pop("frames")
    bare = read(pickle.dumps(made.recording(conf)))  # as recorded without stacks
    assert prove(bare, bare.devices[0], cap if cap != UNLIMITED else None).recorded.exact
    for given_cap in (None, cap if cap != UNLIMITED else None):
        recorded = prove(trace, trace.devices[0], given_cap).recorded
        assert recorded.exact, recorded.first_difference
        assert recorded.peak_reserved_bytes == made.peak_reserved
        assert recorded.peak_allocated_bytes == made.peak_allocated
        # A retry that first waits for another stream leaves what an empty_cache would leave:
        # docs/replay.md.
        waits = any(what == "later" for what, _, _ in steps)
        assert recorded.retries == made.retries or (waits and recorded.retries < made.retries)
        assert recorded.failed_requests == made.failures


@pytest.mark.parametrize("conf", CONFS)
@given(steps=STEPS)
@settings(max_examples=60, deadline=None)
def test_what_if_is_what_the_slow_allocator_does_under_those_settings(
    conf: str, steps: list[tuple[str, int, int]]
) -> None:
    steps = [
        step for step in steps if step[0] != "empty_cache"
    ]  # one that frees nothing leaves no event
    base, other = SlowAllocator(), SlowAllocator(**CONFS[conf])
    after = [
        (event, bytes_)
        for (event, _), (_, bytes_) in zip(perform(base, steps), perform(other, steps), strict=True)
    ]
    if not any(e["action"] == "alloc" for e in base.events):
        return
    trace = read(pickle.dumps(base.recording("")))
    proven = prove(trace, trace.devices[0])
    from vramlens.replay.settings import parse_settings

    native = parse_settings(conf).native(proven.recorded.version)
    found, curve = proven.replay.curve(
        native, addresses=AddressOrder.ASCENDING, completion=0, seed=0
    )
    assert found == proven.replay.run(
        native, addresses=AddressOrder.ASCENDING, completion=0, seed=0
    )
    assert found["peak_reserved"] == other.peak_reserved
    assert found["peak_allocated"] == other.peak_allocated
    events, reserved = np.array(after).T
    assert replayed_curve(curve, None).after(events).tolist() == reserved.tolist()


@given(
    steps=STEPS,
    cap=st.integers(60, 250).map(lambda m: m * MIB + 4711),
    threshold=st.sampled_from([0.5, 0.6, 0.7, 0.8]),
)
@example(
    [("malloc", 31457281, 0), ("free", 0, 0), ("malloc", 1, 0)], 62919271, 0.5
)  # collected, or refused and retried
@settings(max_examples=120, deadline=None)
def test_garbage_collection_under_a_limit_that_nobody_recorded(
    steps: list[tuple[str, int, int]], cap: int, threshold: float
) -> None:
    made = SlowAllocator(cap=cap, threshold=threshold)
    perform(made, steps)
    if not any(e["action"] == "alloc" for e in made.events):
        return
    trace = read(pickle.dumps(made.recording(f"garbage_collection_threshold:{threshold}")))
    known = prove(trace, trace.devices[0], cap).recorded
    assert known.exact, known.first_difference
    recorded = prove(trace, trace.devices[0]).recorded
    assert recorded.exact, recorded.first_difference
    limit = recorded.limit
    if limit.bytes is not None:
        assert limit.bytes <= cap
        assert limit.below_bytes is None or cap < limit.below_bytes
