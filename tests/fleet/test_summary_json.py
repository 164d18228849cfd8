"""A rank's summary comes back from JSON as it was, and nothing else does."""

from __future__ import annotations

import pytest

from vramlens.analyses.finding import Place
from vramlens.fleet.summary_json import summary_from_json, summary_to_json
from vramlens.ground.verdict import Verdict
from vramlens.ranks.rank_summary import RankGrowth, RankSummary

LEAK = RankGrowth(
    verdict=Verdict.LIKELY,
    place=Place("train.py", 3, "step"),
    bytes_per_step=1 << 20,
    bytes=1 << 23,
    steps=8,
    fix=None,
)
LEAKING = RankSummary(rank=2, source="rank2.vram", device=0, leaks=(LEAK,))


def test_a_summary_with_a_leak_comes_back() -> None:
    summary = summary_from_json(summary_to_json(LEAKING))
    assert summary == LEAKING
    assert isinstance(summary.leaks[0].verdict, Verdict)


def test_a_verdict_that_does_not_exist_is_refused() -> None:
    text = summary_to_json(LEAKING).replace('"likely"', '"certain"')
    with pytest.raises(ValueError, match=r"leaks\.verdict"):
        summary_from_json(text)


def test_summaries_share_the_lines_that_they_name() -> None:
    first, second = (summary_from_json(summary_to_json(LEAKING)) for _ in range(2))
    assert first.leaks[0].place is second.leaks[0].place


@pytest.mark.parametrize("line", ["[3]", "3.0", "true", '"3"', "{}"])
def test_a_line_that_is_no_number_is_refused_after_one_that_is(line: str) -> None:
    text = summary_to_json(LEAKING)
    summary_from_json(text)
    with pytest.raises(ValueError, match="place"):
        summary_from_json(text.replace('"line":3', f'"line":{line}'))
