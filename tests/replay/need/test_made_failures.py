"""Failures that no shared recording holds: made event by event. What cannot be projected says so."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from support.recordings import block, event, segment, snapshot
from vramlens import explain
from vramlens.analyses.explanation import Explanation, OomVerdict
from vramlens.analyses.failure.need import ADVICE
from vramlens.units import MIB

FIRST, SECOND = 1 << 30, 1 << 31
CAPTURED_POOL = (3, 1)
"""The pool of a CUDA graph's capture."""


def explained(
    tmp_path: Path,
    events: list[dict[str, Any]],
    segments: list[dict[str, Any]],
    device: int | None = None,
    **more: Any,
) -> Explanation:
    path = tmp_path / "made.pickle"
    path.write_bytes(pickle.dumps(snapshot(events, segments, **more)))
    return explain(path, device=device)


def failure(size: int, free: int = 40 * MIB) -> dict[str, Any]:
    return event("oom", size=size, device_free=free)


def assert_promises_nothing(explanation: Explanation) -> OomVerdict:
    """No point, no setting called good, and a JSON that has all parts."""
    oom = explanation.oom
    assert oom is not None
    assert oom.need is not None
    assert oom.need.peak_reserved_bytes is None
    assert not any(row.lives for row in oom.settings)
    assert [row.conf for row in oom.settings[: len(ADVICE)]] == list(ADVICE)
    assert not any(one.id in ("settings_help", "smaller_batch") for one in explanation.findings)
    return oom


def requests(count: int, size: int = 20 * MIB) -> tuple[list[Any], list[Any]]:
    """So many requests, each with a segment of its own, and what is there then."""
    events, segments = [], []
    for number in range(count):
        address = FIRST + number * 2 * size
        events += [event("segment_alloc", address, size), event("alloc", address, size)]
        segments.append(segment(address, size, [block(address, size, size)]))
    return events, segments


@pytest.mark.parametrize("served", range(10))
def test_a_failure_within_the_first_ten_requests(tmp_path: Path, served: int) -> None:
    events, segments = requests(served)
    oom = assert_promises_nothing(explained(tmp_path, [*events, failure(200 * MIB)], segments))
    assert oom.need is not None
    assert oom.need.low_bytes == served * 20 * MIB + 200 * MIB
    assert oom.need.high_bytes is None


def test_a_recording_that_begins_after_the_model_was_built(tmp_path: Path) -> None:
    before = segment(SECOND, 512 * MIB, [block(SECOND, 512 * MIB, 500 * MIB)])
    events, segments = requests(3)
    oom = assert_promises_nothing(
        explained(tmp_path, [*events, failure(200 * MIB)], [before, *segments])
    )
    assert oom.need is not None
    assert oom.need.low_bytes == (500 + 60 + 200) * MIB


def test_of_several_devices_the_one_that_failed_is_told(tmp_path: Path) -> None:
    path = tmp_path / "two.pickle"
    large, lively = requests(8, 100 * MIB)
    other = [
        event("segment_alloc", SECOND, 20 * MIB, device=1),
        event("alloc", SECOND, 20 * MIB, device=1),
        failure(64 * MIB),
    ]
    small = segment(SECOND, 20 * MIB, [block(SECOND, 20 * MIB, 20 * MIB)], device=1)
    path.write_bytes(pickle.dumps(snapshot([], [*lively, small], device_traces=[large, other])))
    oom = assert_promises_nothing(explain(path))
    assert oom.device == 1
    assert oom.requested_bytes == 64 * MIB
    assert explain(path, device=0).oom is None


def in_capture() -> tuple[list[Any], list[Any]]:
    """A graph's capture with a hole in the default pool that would do, and none in its own."""
    events = [
        event("segment_alloc", FIRST, 400 * MIB),
        event("alloc", FIRST, 400 * MIB),
        event("free_requested", FIRST, 400 * MIB),
        event("free_completed", FIRST, 400 * MIB),
        event("segment_alloc", SECOND, 64 * MIB, segment_pool_id=CAPTURED_POOL),
        event("alloc", SECOND, 64 * MIB, segment_pool_id=CAPTURED_POOL),
        event("oom", size=128 * MIB, device_free=4 * MIB, segment_pool_id=CAPTURED_POOL),
    ]
    segments = [
        segment(FIRST, 400 * MIB, [block(FIRST, 400 * MIB, 0, "inactive")]),
        segment(
            SECOND, 64 * MIB, [block(SECOND, 64 * MIB, 64 * MIB)], segment_pool_id=CAPTURED_POOL
        ),
    ]
    return events, segments


def test_inside_a_graphs_capture_only_its_own_pool_counts(tmp_path: Path) -> None:
    oom = assert_promises_nothing(explained(tmp_path, *in_capture()))
    assert oom.largest_free_bytes == 0
    assert oom.cause == "capacity"
    assert str(CAPTURED_POOL) in oom.headline


def test_of_failures_that_were_caught_the_last_counts(tmp_path: Path) -> None:
    events, segments = requests(4)
    caught = [failure(300 * MIB), *events[:4], failure(200 * MIB), *events[4:], failure(100 * MIB)]
    oom = assert_promises_nothing(explained(tmp_path, caught, segments))
    assert (oom.count, oom.requested_bytes) == (3, 100 * MIB)


@pytest.mark.parametrize(
    ("free", "wall"), [(8 << 30, "process_limit"), (4 * MIB, "device")], ids=["fraction", "device"]
)
def test_what_refused_it(tmp_path: Path, free: int, wall: str) -> None:
    events, segments = requests(5)
    oom = assert_promises_nothing(
        explained(tmp_path, [*events, failure(200 * MIB, free)], segments)
    )
    assert oom.wall == wall
