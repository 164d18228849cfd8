"""A request refused beside a free block of its size (pytorch/pytorch#189504)."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from support.recordings import DATA, event, segment, snapshot
from vramlens import explain
from vramlens.analyses.explanation import Explanation
from vramlens.units import MIB

KEPT, FREED = 1 << 30, (1 << 30) + 512 * MIB
WANTED = 256 * MIB


def explained(tmp_path: Path, *, max_split_size: int = -1, wanted: int = WANTED) -> Explanation:
    """A block that another stream used comes back while a request waits; the request fails."""
    events: list[dict[str, Any]] = [
        event("segment_alloc", KEPT, 512 * MIB),
        event("alloc", KEPT, 512 * MIB),
        event("segment_alloc", FREED, 512 * MIB),
        event("alloc", FREED, 256 * MIB),
        event("alloc", FREED + 256 * MIB, 256 * MIB),
        event("free_requested", FREED, 256 * MIB),
        event("free_completed", FREED, 256 * MIB),
        event("oom", 4 * MIB, wanted, device_free=4 * MIB),
    ]
    events[-1]["addr"] = events[-1].pop("device_free")
    live = {"state": "active_allocated", "frames": []}
    segments = [
        segment(KEPT, 512 * MIB, [{"address": KEPT, "size": 512 * MIB, "requested_size": 512 * MIB, **live}]),
        segment(
            FREED,
            512 * MIB,
            [
                {"address": FREED, "size": 256 * MIB, "requested_size": 0, "state": "inactive", "frames": []},
                {"address": FREED + 256 * MIB, "size": 256 * MIB, "requested_size": 256 * MIB, **live},
            ],
        ),
    ]  # fmt: skip
    settings = {"max_split_size": max_split_size}
    path = tmp_path / "retry.pickle"
    path.write_bytes(pickle.dumps(snapshot(events, segments, allocator_settings=settings)))
    return explain(path)


def test_the_answer_is_to_run_it_once_more(tmp_path: Path) -> None:
    found = explained(tmp_path)
    assert found.oom is not None
    assert (
        "One of these blocks was large enough, but the allocator did not look again"
        in found.oom.headline
    )
    first = found.findings[0]
    assert first.id == "allocator_retry"
    assert "run it again" in (first.fix or "")


@pytest.mark.parametrize(
    "changes", [{"wanted": WANTED + 512}, {"max_split_size": 128 * MIB}], ids=str
)
def test_a_block_that_may_not_be_used_is_no_such_case(
    tmp_path: Path, changes: dict[str, int]
) -> None:
    found = explained(tmp_path, **changes)
    assert not any(one.id == "allocator_retry" for one in found.findings)


@pytest.mark.parametrize("name", ["oom_train", "oom_fragmented", "oom_leak"])
def test_real_failures_are_no_such_case(name: str) -> None:
    found = explain(DATA / f"recordings/{name}.pickle.xz")
    assert not any(one.id == "allocator_retry" for one in found.findings)
