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
USERS_POOL = (0, 7)
"""The pools of a CUDA graph's capture, and of a torch.cuda.MemPool."""


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


def in_pool(pool: tuple[int, int]) -> tuple[list[Any], list[Any]]:
    """A failure in a pool of its own, with a hole in the default pool that would do."""
    events = [
        event("segment_alloc", FIRST, 400 * MIB),
        event("alloc", FIRST, 400 * MIB),
        event("free_requested", FIRST, 400 * MIB),
        event("free_completed", FIRST, 400 * MIB),
        event("segment_alloc", SECOND, 64 * MIB, segment_pool_id=pool),
        event("alloc", SECOND, 64 * MIB, segment_pool_id=pool),
        event("oom", size=128 * MIB, device_free=4 * MIB, segment_pool_id=pool),
    ]
    segments = [
        segment(FIRST, 400 * MIB, [block(FIRST, 400 * MIB, 0, "inactive")]),
        segment(SECOND, 64 * MIB, [block(SECOND, 64 * MIB, 64 * MIB)], segment_pool_id=pool),
    ]
    return events, segments


@pytest.mark.parametrize("pool", [CAPTURED_POOL, USERS_POOL], ids=["graph capture", "MemPool"])
def test_in_a_pool_of_its_own_only_that_pool_counts(tmp_path: Path, pool: tuple[int, int]) -> None:
    oom = assert_promises_nothing(explained(tmp_path, *in_pool(pool)))
    assert oom.largest_free_bytes == 0
    assert oom.cause == "capacity"
    assert str(pool) in oom.headline


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


STEP = (("forward", 24), ("backward", 40), ("adam", 60))
"""Where each part of a step asks, and how many MiB."""
FRAMES = {
    "forward": ("/home/user/train.py", 20, "forward"),
    "backward": ("/home/user/train.py", 22, "main"),
    "adam": ("/site-packages/torch/optim/adam.py", 450, "step"),
}


class Training:
    """Steps of one size: a model, activations, gradients, and what the optimizer makes meanwhile."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.segments: list[Any] = []
        self._next = FIRST

    def frames_of(self, part: str) -> list[dict[str, Any]]:
        """The stack of a part's requests, the innermost frame first."""
        stack = (FRAMES[part], ("/home/user/train.py", 9, "main"))
        return [{"filename": file, "line": line, "name": name} for file, line, name in stack]

    def asked(self, part: str, mib: int) -> int:
        frames = self.frames_of(part)
        address, self._next = self._next, self._next + 2 * mib * MIB
        self.events.append(event("segment_alloc", address, mib * MIB, frames=frames))
        self.events.append(event("alloc", address, mib * MIB, frames=frames))
        return address

    def step(self, until: str | None = None) -> list[tuple[int, int]]:
        """One step, or its beginning; gives what is alive where it stopped."""
        alive: list[tuple[int, int]] = []
        for part, mib in STEP:
            if part == until:
                return alive
            alive += [(self.asked(part, mib), mib) for _ in range(3)]
        for address, mib in reversed(alive):
            for action in ("free_requested", "free_completed", "segment_free"):
                self.events.append(event(action, address, mib * MIB))
        return []

    def failed_in(self, part: str) -> tuple[list[Any], list[Any]]:
        """Three whole steps, and one that fails where ``part`` first asks."""
        for _ in range(3):
            self.step()
        alive = self.step(part)
        failed = failure(dict(STEP)[part] * MIB)
        self.events.append({**failed, "frames": self.frames_of(part)})
        for address, size in alive:
            taken = block(address, size * MIB, size * MIB)
            self.segments.append(segment(address, size * MIB, [taken]))
        return self.events, self.segments


@pytest.mark.parametrize("part", ["backward", "adam"])
def test_inside_backward_and_the_optimizer_an_earlier_step_tells_the_rest(
    tmp_path: Path, part: str
) -> None:
    oom = explained(tmp_path, *Training().failed_in(part)).oom
    assert oom is not None
    assert oom.need is not None
    assert oom.need.basis == "earlier_step"
    assert oom.need.peak_reserved_bytes == 3 * (24 + 40 + 60) * MIB
    assert not any(row.lives for row in oom.settings)


def test_after_the_first_steps_are_overwritten_the_last_whole_one_tells_the_rest(
    tmp_path: Path,
) -> None:
    """A ring that wrapped: it begins within a step, whose memory was there before."""
    training = Training()
    before = training.step("backward")
    began = len(training.events)
    for address, mib in before:
        for action in ("free_requested", "free_completed", "segment_free"):
            training.events.append(event(action, address, mib * MIB))
    events, segments = training.failed_in("adam")
    oom = explained(tmp_path, events[began:], segments).oom
    assert oom is not None
    assert oom.need is not None
    assert oom.need.basis == "earlier_step"
    assert oom.need.low_bytes <= 3 * (24 + 40 + 60) * MIB <= (oom.need.high_bytes or 0)
    assert not any(row.lives for row in oom.settings)
