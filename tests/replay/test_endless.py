"""Recordings made to keep the replay busy for ever: each ends, in a time that its length bounds."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.recordings import DATA
from vramlens._native import Replay
from vramlens.errors import InputError

_TYPES = {
    **dict.fromkeys(
        ("action", "emptied", "row_scratch", "row_pending", "base_mapped", "base_small"), np.uint8
    ),
    **dict.fromkeys(("allocation",), np.int32),
    **dict.fromkeys(("row_born",), np.int64),
    **dict.fromkeys(("released_pool", "row_pool", "base_pool"), np.uint32),
}
_ALLOC, _SEGMENT_MAP, _OOM = 0, 5, 7
MIB = 1 << 20


def columns_of(tables: dict[str, list[int]]) -> dict[str, np.ndarray]:
    return {name: np.array(values, _TYPES.get(name, np.uint64)) for name, values in tables.items()}


def replay_file(path: str) -> None:
    """Replays a file's tables, and answers each of its what-ifs."""
    tables = json.loads(Path(path).read_text())
    pools, settings, what_if = (tables.pop(name) for name in ("pools", "settings", "what_if"))
    replay = Replay(columns_of(tables), pools=pools, settings=settings)
    for question in what_if:
        with contextlib.suppress(InputError):  # some of the settings make no sense
            replay.run(**question)


def test_a_block_freed_at_once_while_pending_ends() -> None:
    """Found by fuzz_replay: the block was free and pending at once, and its neighbours became a
    ring.
    """
    source = DATA / "hostile" / "freed_at_once_while_pending.json"
    code = f"import test_endless; test_endless.replay_file({str(source)!r})"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])
    }
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=300)


SETTINGS = {
    "expandable_segments": 1,
    "tie_order": 0,
    "scope_suppresses_release": 0,
    "max_split_size": 2**64 - 1,
    "max_non_split_rounding_size": 20 * MIB,
    "large_segment_size": 20 * MIB,
    "garbage_collection_threshold": 0.0,
    "allowed_maximum": 2**60,
    "capacity": 2**64 - 1,
    "reject_above": 2**64 - 1,
    "reserve": 64 * MIB,
    "roundup_power2_divisions": [0] * 16,
}


def test_requests_that_walk_over_every_range_are_given_up() -> None:
    """20,000 ranges with room for nothing, and as many requests that would look at each: 400
    million steps.
    """
    count = 20_000
    ranges = [2**40 + number * 128 * MIB for number in range(count)]
    tables = {
        "action": [_OOM] * count,
        "address": [0] * count,
        "size": [100 * MIB] * count,
        **{name: [0] * count for name in ("stream", "emptied", "released_pool")},
        "allocation": [-1] * count,
        "row_born": [-1] * count,
        "row_address": ranges,
        "row_requested": [20 * MIB] * count,
        "row_taken": [20 * MIB] * count,
        **{f"row_{name}": [0] * count for name in ("stream", "pool", "scratch", "pending")},
        "base_address": ranges,
        "base_size": [20 * MIB] * count,
        "base_stream": [0] * count,
        "base_reservation": ranges,
        "base_pool": [0] * count,
        "base_mapped": [1] * count,
        "base_small": [0] * count,
    }
    with pytest.raises(InputError):
        Replay(columns_of(tables), pools=1, settings=SETTINGS)
