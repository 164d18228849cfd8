"""Leaks that the ranks share: no rank differs, and yet there is something to act on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from vramlens.analyses.finding import Finding, Place
from vramlens.ground.verdict import Verdict, least_sure
from vramlens.ranks.peers.usual import lower_median
from vramlens.ranks.rank_difference import LEAST_BYTES, LEAST_SHARE
from vramlens.ranks.rank_summary import RankGrowth, RankSummary
from vramlens.ranks.rank_words import who_of
from vramlens.units import format_size


def shared_leaks(ranks: Sequence[RankSummary]) -> tuple[Finding, ...]:
    """The leaks that more than half of the ranks have at one line, the largest first; growth that
    may be a leak only where all ranks have it.
    """
    by_place: dict[Place | None, list[RankGrowth]] = defaultdict(list)
    for rank in ranks:
        for place, leak in _largest_leaks(rank).items():
            by_place[place].append(leak)
    shared = [(place, _shared(leaks, ranks)) for place, leaks in by_place.items()]
    shared.sort(key=lambda row: -_median_bytes(row[1]))
    return tuple(_shared_leak(place, leaks, len(ranks)) for place, leaks in shared if leaks)


def _shared(leaks: Sequence[RankGrowth], ranks: Sequence[RankSummary]) -> Sequence[RankGrowth]:
    """Those of one line's leaks that the ranks share; none where they do not."""
    sure = [leak for leak in leaks if leak.verdict.is_sure]
    if len(sure) > max(1, len(ranks) / 2):
        return sure if _median_bytes(sure) >= LEAST_BYTES else []
    usual_peak = lower_median(rank.peak_requested_bytes for rank in ranks)
    least_bytes = max(LEAST_BYTES, LEAST_SHARE * usual_peak)
    is_everywhere = 1 < len(ranks) == len(leaks)
    return leaks if is_everywhere and _median_bytes(leaks) >= least_bytes else []


def _largest_leaks(rank: RankSummary) -> dict[Place | None, RankGrowth]:
    """A rank's largest leak at each line, of those that are not empty; sure ones first. Each with
    all that leaked.
    """
    largest: dict[Place | None, RankGrowth] = {}
    ordered = sorted(rank.leaks, key=lambda leak: (leak.verdict.is_sure, leak.bytes), reverse=True)
    for leak in ordered:
        if leak.verdict != Verdict.NOT_A_PROBLEM and leak.bytes > 0:
            largest.setdefault(leak.place, leak)
    return {place: _with_all_bytes(leak, rank) for place, leak in largest.items()}


def _with_all_bytes(leak: RankGrowth, rank: RankSummary) -> RankGrowth:
    """A leak with what its lines hold."""
    lines = [line for line in rank.lines if line.place in leak.places]
    at_peak = sum(line.at_peak_bytes for line in lines)
    most = sum(line.peak_bytes for line in lines)
    return replace(leak, bytes=leak.leaked_bytes(at_peak, most, len(rank.step_peaks)))


def _median_bytes(leaks: Sequence[RankGrowth]) -> int:
    return lower_median(leak.bytes for leak in leaks)


def _shared_leak(place: Place | None, leaks: Sequence[RankGrowth], ranks: int) -> Finding:
    per_step = lower_median(leak.bytes_per_step for leak in leaks)
    verdict = least_sure(leak.verdict for leak in leaks)
    trouble = "growth, maybe a leak" if verdict == Verdict.POSSIBLE else "leak"
    return Finding(
        id="leak",
        verdict=verdict,
        title=f"{who_of(len(leaks), ranks)} have the same {trouble}:"
        f" {format_size(per_step)} more on each rank after every step",
        bytes=_median_bytes(leaks),
        place=place,
        evidence=(f"{leaks[0].steps:,} steps recorded; the ranks do not differ",),
        fix=next((leak.fix for leak in leaks if leak.fix), None),
    )
