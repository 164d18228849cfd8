"""What was seen to grow and is gone at the end: how certain a leak it still is."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from vramlens.ground.verdict import Verdict
from vramlens.live.gone_leaks import gone_leak, without_certainty
from vramlens.live.leaks.leak_report import Gone, LeakReport, LiveLeak


@pytest.mark.parametrize(("is_remade", "verdict"), [(False, "likely"), (True, "possible")])
def test_a_cache_that_grew_with_its_sequence_is_done_with_it(is_remade: bool, verdict: str) -> None:
    """Keys and values of one request, whose last look came late in it."""
    leak = LiveLeak(
        verdict=Verdict.PROVEN,
        kind="container",
        bytes_per_step=18_432,
        bytes=29 * 18_432,
        steps=10,
        is_remade=is_remade,
    )
    gone = Gone(bytes_per_step=18_432, step=1655, function="generate")
    told = gone_leak(leak, None, 1680, gone)
    assert told.verdict == verdict
    assert ("a sequence that grows until it is done" in told.reason) == is_remade


@pytest.mark.parametrize(("in_vain", "verdict"), [("", "possible"), ("nothing reads it", "likely")])
def test_what_an_ended_loop_left_for_nobody_is_likely(in_vain: str, verdict: str) -> None:
    leak = LiveLeak(
        verdict=Verdict.PROVEN,
        kind="container",
        bytes_per_step=1 << 20,
        bytes=20 << 20,
        steps=20,
        in_vain=in_vain,
    )
    (told,) = without_certainty(LeakReport(steps=60, leaks=(leak,))).leaks
    assert told.verdict == verdict
    assert (f"has ended, but {in_vain}" in told.reason) == bool(in_vain)
