"""Memory that one edit gives back: a rank's own, what all ranks have alike, and what explains why
one of them holds more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.ranking import found_by_row
from vramlens.analyses.findings.table import FROM_RECORDING
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import least_sure
from vramlens.ranks.excess.causes import AVOIDABLE, WORDS
from vramlens.ranks.peers.usual import lower_median
from vramlens.ranks.peers.whole_parameters import whole_parameters
from vramlens.ranks.rank_difference import LEAST_BYTES, RankDifference
from vramlens.ranks.rank_summary import AvoidableUse, RankSummary
from vramlens.ranks.rank_words import who_of

_LEAST_SHARE = 0.1
"""Of the peak, that the ranks' common trouble is worth: with a twentieth, gradients of a small part that
stay until the next step are told of healthy jobs; with a fifth, half of a batch's outputs is not.
"""
_EXPLAINED = 0.5
"""Of a difference, that a rank's avoidable use must be: a smaller part is one cause of several."""
_LEAST_SHARES = {"unused_graph": 0.3, "gradients_kept": 1.0}
"""The same of findings that rest on when blocks came and went: enough to explain a difference, too little
to say something of a job whose ranks agree, but for graphs that nearly make its peak.
"""
_BY_LINES = ("rank_only", "unknown", "larger_tensors", "uneven_batch", "larger_part")
"""Causes that only tell which lines hold more, and not why."""


def avoidable_uses(view: Attribution) -> Iterator[AvoidableUse]:
    """Yields what a rank need not hold, each part of its memory once."""
    rows = [row for row in FROM_RECORDING if row.is_avoidable]
    for _, findings in found_by_row(Scene(view), rows):
        for finding in findings:
            if finding.bytes and finding.fix:
                yield _use(finding, finding.bytes, finding.fix)


def _use(finding: Finding, size_bytes: int, fix: str) -> AvoidableUse:
    return AvoidableUse(
        id=finding.id,
        verdict=finding.verdict,
        bytes=size_bytes,
        place=finding.place,
        title=finding.title,
        evidence=finding.evidence,
        fix=fix,
    )


def shared_avoidable_uses(ranks: Sequence[RankSummary]) -> tuple[Finding, ...]:
    """What more than half of the ranks need not hold, at least a tenth of their peak, and parameters that
    all of them keep whole; the largest first.
    """
    shared = [uses for uses in _alike(ranks).values() if len(uses) > max(1, len(ranks) / 2)]
    findings = [*(_shared(uses, len(ranks)) for uses in shared), *whole_parameters(ranks)]
    return tuple(sorted(findings, key=lambda finding: -finding.size_bytes))


def _alike(ranks: Iterable[RankSummary]) -> dict[str, list[AvoidableUse]]:
    """By id, what ranks surely need not hold, where it is much of their peak."""
    alike: dict[str, list[AvoidableUse]] = defaultdict(list)
    for rank in ranks:
        for use in rank.avoidable:
            share = _LEAST_SHARES.get(use.id, _LEAST_SHARE)
            least_bytes = max(LEAST_BYTES, share * rank.peak_requested_bytes)
            if use.verdict.is_sure and use.bytes >= least_bytes:
                alike[use.id].append(use)
    return alike


def avoidable_of_lone_ranks(
    ranks: Mapping[int, RankSummary], cohorts: Sequence[Sequence[int]]
) -> Iterator[RankDifference]:
    """What ranks need not hold that nobody does the same work as: no comparison tells it. Without what rests
    on when blocks came and went, for no other rank confirms it, and what most ranks have, which is told of all.

    Args:
        cohorts: who does the same work.
    """
    lone = [members[0] for members in cohorts if len(members) == 1 and len(cohorts) > 1]
    shared = {finding.id for finding in shared_avoidable_uses(tuple(ranks.values()))}
    for rank in lone:
        for name, uses in _alike([ranks[rank]]).items():
            if name not in shared and name not in _LEAST_SHARES:
                yield from (_of_lone_rank(rank, use) for use in uses)


def _of_lone_rank(rank: int, use: AvoidableUse) -> RankDifference:
    return RankDifference(
        ranks=(rank,),
        cause=AVOIDABLE,
        verdict=use.verdict,
        bytes=use.bytes,
        place=use.place,
        title=f"{WORDS[AVOIDABLE]}: {use.title[:1].lower()}{use.title[1:]}",
        evidence=(*use.evidence, "nobody does the same work, so this is of its recording alone"),
        fix=use.fix,
    )


def _shared(uses: Sequence[AvoidableUse], ranks: int) -> Finding:
    usual_bytes = lower_median(use.bytes for use in uses)
    usual = next(use for use in uses if use.bytes == usual_bytes)
    title = usual.title[:1].lower() + usual.title[1:]
    return Finding(
        id=usual.id,
        verdict=least_sure(use.verdict for use in uses),
        title=f"{who_of(len(uses), ranks)} have the same trouble: {title}",
        bytes=usual_bytes,
        place=usual.place,
        evidence=usual.evidence,
        fix=usual.fix,
    )


def with_avoidable_uses(
    differences: Iterable[RankDifference], ranks: Mapping[int, RankSummary]
) -> tuple[RankDifference, ...]:
    """Differences, with the reason of those that are mostly what their ranks need not hold, and the
    others do not.
    """
    return tuple(_explained(difference, ranks) for difference in differences)


def _explained(difference: RankDifference, ranks: Mapping[int, RankSummary]) -> RankDifference:
    if difference.cause not in _BY_LINES:
        return difference
    for use in ranks[difference.ranks[0]].avoidable:
        is_most = use.bytes >= _EXPLAINED * difference.bytes
        if use.verdict.is_sure and is_most and _is_of(difference, use, ranks):
            evidence = (*difference.evidence, use.title, *use.evidence)
            return replace(difference, evidence=evidence, fix=use.fix)
    return difference


def _is_of(difference: RankDifference, use: AvoidableUse, ranks: Mapping[int, RankSummary]) -> bool:
    """Whether a use is one of the ranks that differ, and of no others."""
    users = {
        number
        for number, rank in ranks.items()
        if any(other.id == use.id and 2 * other.bytes >= use.bytes for other in rank.avoidable)
    }
    return users == set(difference.ranks)
