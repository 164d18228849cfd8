"""Trouble that the ranks share: no rank differs, and yet there is something to act on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from vramlens.analyses.finding import Finding, Place
from vramlens.ground.verdict import Verdict
from vramlens.ranks.difference import LEAST_BYTES
from vramlens.ranks.summary import Growth, RankSummary
from vramlens.ranks.usual import lower_median
from vramlens.units import format_size

_SURE = (Verdict.PROVEN, Verdict.LIKELY)


def shared_leaks(ranks: Sequence[RankSummary]) -> tuple[Finding, ...]:
    """The leaks that more than half of the ranks have at one line, the largest first."""
    by_place: dict[Place | None, list[Growth]] = defaultdict(list)
    for rank in ranks:
        largest: dict[Place | None, Growth] = {}
        for leak in rank.leaks:
            if leak.verdict in _SURE and leak.bytes > getattr(largest.get(leak.place), "bytes", 0):
                largest[leak.place] = leak
        for place, leak in largest.items():
            by_place[place].append(leak)
    findings = [
        _shared_leak(place, leaks, len(ranks))
        for place, leaks in by_place.items()
        if len(leaks) > 1 and 2 * len(leaks) > len(ranks)
    ]
    large = [finding for finding in findings if (finding.bytes or 0) >= LEAST_BYTES]
    return tuple(sorted(large, key=lambda finding: -(finding.bytes or 0)))


def _shared_leak(place: Place | None, leaks: Sequence[Growth], ranks: int) -> Finding:
    per_step = lower_median(leak.bytes_per_step for leak in leaks)
    certain = all(leak.verdict == Verdict.PROVEN for leak in leaks)
    if len(leaks) < ranks:
        who = f"{len(leaks)} of {ranks} ranks leak alike"
    else:
        who = "Both ranks leak alike" if ranks == 2 else f"All {ranks} ranks leak alike"
    return Finding(
        id="leak",
        verdict=Verdict.PROVEN if certain else Verdict.LIKELY,
        title=f"{who}: {format_size(per_step)} more on each after every step",
        bytes=lower_median(leak.bytes for leak in leaks),
        place=place,
        evidence=(f"{leaks[0].steps:,} steps recorded; no rank differs from the others in it",),
        fix=next((leak.fix for leak in leaks if leak.fix), None),
    )
