"""The allocator's sizes: what is asked of the driver, and that the native replay has the same."""

from __future__ import annotations

import re
from pathlib import Path

from vramlens.ground import allocator_sizes
from vramlens.ground.allocator_sizes import segment_size
from vramlens.units import MIB

NATIVE = Path(__file__).parents[2] / "native/replay_settings.h"
NAMES = {
    "kSmallSize": "SMALL_REQUEST",
    "kSmallBuffer": "SMALL_SEGMENT",
    "kMinLargeAlloc": "LARGE_REQUEST",
    "kRoundLarge": "PAGE",
    "large_segment_size": "LARGE_SEGMENT",
}


def test_segments_asked_of_the_driver() -> None:
    asked = {
        1: 2 * MIB,
        MIB: 2 * MIB,
        MIB + 512: 20 * MIB,
        10 * MIB - 512: 20 * MIB,
        10 * MIB: 10 * MIB,
    }
    asked[11 * MIB] = 12 * MIB
    assert {size: segment_size(size) for size in asked} == asked
    assert segment_size(3 * MIB, large_segment_bytes=40 * MIB) == 40 * MIB


def test_the_native_replay_has_the_same_sizes() -> None:
    shifted = r"uint64_t (\w+) = uint64_t\{(\d+)\}\s*<< 20;"
    native = {name: int(mib) * MIB for name, mib in re.findall(shifted, NATIVE.read_text())}
    assert {own: native[name] for name, own in NAMES.items()} == {
        own: getattr(allocator_sizes, own) for own in NAMES.values()
    }
