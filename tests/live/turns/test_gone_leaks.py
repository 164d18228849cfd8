"""What was seen to grow and is gone at the end: how certain a leak it still is."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from vramlens.ground.verdict import Verdict
from vramlens.live.gone_leaks import gone_leak
from vramlens.live.leaks.leak_report import Gone, LiveLeak


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
