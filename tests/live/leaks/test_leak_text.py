"""The words of a report on live leaks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vramlens.ground.verdict import Verdict
from vramlens.leak.leak import LeakOwner
from vramlens.live.leaks.leak_report import LeakReport, LiveLeak
from vramlens.live.leaks.leak_text import report_text
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


def test_a_report_fits_a_narrow_terminal_with_the_same_words() -> None:
    leak = LiveLeak(
        verdict=Verdict.PROVEN,
        kind="graph",
        bytes_per_step=65536,
        bytes=11 * 65536,
        steps=11,
        device="cpu",
        evidence=("all 9 steps from 2 to 10 left memory behind that is still in use",) * 2,
    )
    report = LeakReport(12, (leak,), notes=("no optimizer has stepped: a step is a call of Net",))
    narrow, wide = report_text(report, 44), report_text(report)
    assert max(map(len, narrow.splitlines())) <= 44 < max(map(len, wide.splitlines())) <= 80
    assert narrow.split() == wide.split()
    assert wide == str(report)


def _possible(name: str, bytes_per_step: int, *, is_small: bool) -> LiveLeak:
    return LiveLeak(
        verdict=Verdict.POSSIBLE,
        kind="container",
        bytes_per_step=bytes_per_step,
        bytes=40 * bytes_per_step,
        steps=40,
        owner=LeakOwner(name, "list", "train.py", 5, "main", ()),
        device="cpu",
        reason="line 9 empties it",
        is_small=is_small,
    )


def test_what_is_too_small_to_matter_takes_one_line() -> None:
    small = (_possible("a", 80, is_small=True), _possible("b", 96, is_small=True))
    large = _possible("c", 4096, is_small=False)
    text = " ".join(str(LeakReport(40, (large, *small))).split())
    assert "1 possible: c" in text
    assert "possible: a" not in text
    assert "2 places keep a little. The largest: b (train.py:5), 96 bytes per step." in text
    alone = " ".join(str(LeakReport(40, small[:1])).split())
    assert "No leak: 40 steps watched" in alone
    assert "Too small to matter: a (train.py:5), 80 bytes per step." in alone


def test_of_what_is_bounded_the_bytes_are_told_and_no_rate() -> None:
    """A cache that only filled keeps nothing of each step."""
    bounded = replace(
        _possible("cache", 4096, is_small=False),
        verdict=Verdict.NOT_A_PROBLEM,
        reason="a cache of at most 40",
    )
    text = str(LeakReport(400, (bounded,)))
    assert "not a problem: cache (train.py:5), 160.00 KiB: a cache of at most 40" in text
