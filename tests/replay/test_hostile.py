"""Events that no allocator ever made: a clear answer or a difference, never a crash."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.recordings import block, event, read, segment, snapshot
from vramlens.errors import VramlensError
from vramlens.replay import prove, tune_trace
from vramlens.units import MIB

ADDRESSES = st.sampled_from(
    [0, 512, 2**40, 2**40 + 512, 2**40 + 2 * MIB, 2**40 + 20 * MIB, 2**41, 2**62]
)
SIZES = st.sampled_from([0, 1, 512, 700, MIB, 2 * MIB, 3 * MIB, 20 * MIB, 40 * MIB, 2**42, 2**43])
ACTIONS = st.sampled_from(
    [
        *("alloc", "alloc", "free_requested", "free_completed", "oom", "other"),
        *("segment_alloc", "segment_free", "segment_map", "segment_unmap"),
    ]
)
EVENTS = st.lists(
    st.tuples(ACTIONS, ADDRESSES, SIZES, st.sampled_from([0, 7, 2**63]), st.booleans()), max_size=40
)
STATES = st.sampled_from(["active_allocated", "inactive", "active_pending_free"])
SEGMENTS = st.lists(
    st.tuples(ADDRESSES, SIZES, st.booleans(), st.sampled_from([(0, 0), (0, 1), (1, 0)]), STATES),
    max_size=5,
)
CONFS = st.sampled_from(
    ["", "expandable_segments:True", "max_split_size_mb:20", "garbage_collection_threshold:0.5"]
)


def made(events: list[tuple[Any, ...]], segments: list[tuple[Any, ...]], conf: str) -> bytes:
    listed = [
        event(action, address, size, stream=stream)
        | ({"frames": [{"filename": "m.py", "line": 1, "name": "empty_cache"}]} if emptied else {})
        for action, address, size, stream, emptied in events
    ]
    final = [
        segment(
            address,
            size,
            [
                block(address, size // 2, size // 3, state),
                block(address + size // 2, size - size // 2, 9),
            ],
            is_expandable=expandable,
            segment_pool_id=pool,
        )
        for address, size, expandable, pool, state in segments
    ]
    settings_ = {
        "PYTORCH_CUDA_ALLOC_CONF": conf,
        "expandable_segments": conf.startswith("expandable"),
    }
    if conf.startswith("garbage"):
        settings_["garbage_collection_threshold"] = 0.5
    if conf.startswith("max_split"):
        settings_["max_split_size"] = 20 * MIB
    return pickle.dumps(snapshot(listed, final, allocator_settings=settings_))


@pytest.mark.slow
@given(events=EVENTS, segments=SEGMENTS, conf=CONFS)
@settings(max_examples=600, deadline=None)
def test_nonsense_is_answered(
    events: list[tuple[Any, ...]], segments: list[tuple[Any, ...]], conf: str
) -> None:
    with contextlib.suppress(VramlensError):
        trace = read(made(events, segments, conf))
        for device in trace.devices.values():
            recorded = prove(trace, device).recorded
            assert recorded.exact or recorded.first_difference is not None
        tune_trace(
            trace, cap_bytes=2**42, confs=["", "expandable_segments:True", "max_split_size_mb:20"]
        )


def test_no_limit_is_looked_for_beyond_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed request of 8 TiB: each multiple of 2 MiB up to there would be a limit to try, for
    minutes.
    """
    events = [
        ("segment_alloc", 2**40, 2 * MIB, 0, False),
        ("alloc", 2**40, 512, 0, False),
        ("segment_free", 2**41, 2 * MIB, 0, False),
        ("oom", 0, 2**43, 0, False),
    ]
    trace = read(made(events, [], "garbage_collection_threshold:0.5"))
    seen: list[int] = []

    def noted(low: int, high: int, _settings: object) -> list[int]:
        seen.append(high)
        return [low, high]

    monkeypatch.setattr("vramlens.replay.proof._limits_to_try", noted)
    assert not prove(trace, trace.devices[0]).recorded.exact
    assert (
        2 * MIB < max(seen) <= 2**39 + MIB
    )  # more than any device has, and some hundred thousand limits to try
