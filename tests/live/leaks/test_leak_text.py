"""The words of a report on live leaks."""

from __future__ import annotations

import pytest

from vramlens.ground.verdict import Verdict
from vramlens.live.leaks.leak_report import LeakReport, LiveLeak
from vramlens.units import GIB


@pytest.mark.parametrize(
    ("bytes_per_step", "words"),
    [
        (GIB, "out of memory in about 80 steps"),
        (4, "room for more than 1,000,000 steps"),
    ],
)
def test_when_the_memory_is_full(bytes_per_step: int, words: str) -> None:
    leak = LiveLeak(
        verdict=Verdict.PROVEN,
        kind="graph",
        bytes_per_step=bytes_per_step,
        bytes=40 * bytes_per_step,
        steps=40,
        device="cuda:0",
    )
    report = LeakReport(40, (leak,), headroom_bytes=80 * GIB)
    assert words in " ".join(str(report).split())
