"""Trouble that the ranks share: no rank differs, and yet there is something to act on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from vramlens.analyses.finding import Finding, Place
from vramlens.ground.verdict import Verdict
from vramlens.ranks.peers.usual import lower_median
from vramlens.ranks.rank_difference import LEAST_BYTES
from vramlens.ranks.rank_summary import Growth, RankSummary
from vramlens.units import format_size

_SURE = (Verdict.PROVEN, Verdict.LIKELY)


def shared_leaks(ranks: Sequence[RankSummary]) -> tuple[Finding, ...]:
    """The leaks that more than half of the ranks have at one line, the largest first."""
    by_place: dict[Place | None, list[Growth]] = defaultdict(list)
    for rank in ranks:
        for place, leak in _largest_leaks(rank).items():
            by_place[place].append(leak)
    leaks_by_size = sorted(
        (
            (_median_bytes(leaks), place, leaks)
            for place, leaks in by_place.items()
            if len(leaks) > max(1, len(ranks) / 2)
        ),
        key=lambda row: -row[0],
    )
    return tuple(
        _shared_leak(place, leaks, len(ranks))
        for size, place, leaks in leaks_by_size
        if size >= LEAST_BYTES
    )


def _largest_leaks(rank: RankSummary) -> dict[Place | None, Growth]:
    """A rank's largest leak at each line, of those that are sure and not empty."""
    largest: dict[Place | None, Growth] = {}
    for leak in sorted(rank.leaks, key=lambda leak: leak.bytes, reverse=True):
        if leak.verdict in _SURE and leak.bytes > 0:
            largest.setdefault(leak.place, leak)
    return largest


def _median_bytes(leaks: Sequence[Growth]) -> int:
    return lower_median(leak.bytes for leak in leaks)


def _shared_leak(place: Place | None, leaks: Sequence[Growth], ranks: int) -> Finding:
    per_step = lower_median(leak.bytes_per_step for leak in leaks)
    certain = all(leak.verdict == Verdict.PROVEN for leak in leaks)
    if len(leaks) < ranks:
        who = f"{len(leaks)} of {ranks} ranks have the same leak"
    else:
        who = (
            "Both ranks have the same leak"
            if ranks == 2
            else f"All {ranks} ranks have the same leak"
        )
    return Finding(
        id="leak",
        verdict=Verdict.PROVEN if certain else Verdict.LIKELY,
        title=f"{who}: {format_size(per_step)} more on each rank after every step",
        bytes=_median_bytes(leaks),
        place=place,
        evidence=(f"{leaks[0].steps:,} steps recorded; the ranks do not differ",),
        fix=next((leak.fix for leak in leaks if leak.fix), None),
    )
