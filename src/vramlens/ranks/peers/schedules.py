"""Pipelines that a library's schedule runs, such as torch.distributed.pipelining: each stage calls it at a line
of its own (the first gives inputs, the last one labels), and all of a stage's work stands there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from vramlens.ranks.hints import Hint
from vramlens.ranks.rank_summary import LineUse, RankSummary


def are_run_by_schedule(ranks: Iterable[RankSummary]) -> bool:
    """True if on every rank what talks to other stages calls the forward pass that holds the most."""
    largest = [_largest_forward(summary) for summary in ranks]
    by_schedule = [line is not None and bool(line.hints & Hint.POINT_TO_POINT) for line in largest]
    return bool(by_schedule) and all(by_schedule)


def with_one_schedule(ranks: Mapping[int, RankSummary]) -> dict[int, RankSummary]:
    """The ranks, the work that a schedule calls at one and the same line; unchanged without a schedule."""
    if not are_run_by_schedule(ranks.values()):
        return dict(ranks)
    first = _largest_forward(ranks[min(ranks)])
    place = None if first is None else first.place

    def at_one_line(line: LineUse) -> LineUse:
        return replace(line, place=place) if line.hints & Hint.POINT_TO_POINT else line

    return {
        rank: replace(summary, lines=tuple(map(at_one_line, summary.lines)))
        for rank, summary in ranks.items()
    }


def _largest_forward(summary: RankSummary) -> LineUse | None:
    forward = (line for line in summary.lines if line.phase == "forward")
    return max(forward, key=lambda line: line.at_peak_bytes, default=None)
