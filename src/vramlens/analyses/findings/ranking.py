"""Rows and ranking: what counts for every finding of one id, which findings matter, and which comes first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict

LEAST_SHARE = 0.01
"""What is less than this of the peak, and of the request that failed, is hardly worth advice."""

SceneT = TypeVar("SceneT")

_WEIGHT_OF_POSSIBLE = 0.5


@dataclass(frozen=True, kw_only=True)
class FindingRow(Generic[SceneT]):
    """One kind of finding.

    Attributes:
        id: the slug that docs/findings.md lists.
        find: what yields it from a scene; None where another answer makes it.
        importance: its place among what a failure calls for, the first is 0; None where only its
            bytes count.
        important_from_share: of the peak; one with less has no importance.
        at_any_size: whether it matters however few its bytes are.
        is_avoidable: whether one edit gives its bytes back, and nothing is lost.
        is_mended_in_code: whether an edit of a few lines mends it: where it frees enough for a request
            that failed, that comes before what only makes room.
        saves_at_most: whether its bytes are all that its fix saves: what is still to come of the step
            takes as much as before (a finding that recurs saves more).
        may_be_meant: whether the program may well be meant to be so: then other advice about the same
            bytes is of use, too.
        grows: whether it is something that the program keeps, and more with time, whatever its batch.
        takes_place_of: the id of the finding that says less about the same bytes; "" without one.
        unless: tells of another finding whether it makes this one superfluous.
    """

    id: str
    find: Callable[[SceneT], Iterator[Finding]] | None = None
    importance: int | None = None
    important_from_share: float = 0.0
    at_any_size: bool = False
    is_avoidable: bool = False
    is_mended_in_code: bool = False
    saves_at_most: bool = False
    may_be_meant: bool = False
    grows: bool = False
    takes_place_of: str = ""
    unless: Callable[[SceneT, Finding], bool] | None = None


def found_by_row(
    scene: SceneT, rows: Iterable[FindingRow[SceneT]]
) -> Iterator[tuple[FindingRow[SceneT], list[Finding]]]:
    """Yields each row with what it finds in a scene, without those whose place one before took."""
    superseded: set[str] = set()
    for row in rows:
        if row.find is None or row.id in superseded:
            continue
        findings = list(row.find(scene))
        if findings:
            superseded.add(row.takes_place_of)
        yield row, findings


Rows = Mapping[str, FindingRow[Any]]
"""The rows by id; a finding without one counts by its bytes alone."""


def that_matter(findings: Iterable[Finding], rows: Rows, least_bytes: float) -> list[Finding]:
    """The findings without advice whose bytes are far below what matters."""
    return [
        finding
        for finding in findings
        if finding.fix is None
        or finding.bytes is None
        or finding.bytes >= least_bytes
        or rows[finding.id].at_any_size
    ]


def ranked(
    findings: Iterable[Finding], rows: Rows, *, failed: bool, peak_bytes: int = 0
) -> tuple[Finding, ...]:
    """The most useful first: what saves most and can be acted on; what would not help, last.

    Args:
        failed: whether memory ran out: what that calls for then comes before what merely takes
            much room.
        peak_bytes: what a finding's bytes are measured by.
    """

    def rank(finding: Finding) -> tuple[bool, float, float, int]:
        size_bytes = finding.size_bytes
        weight = _WEIGHT_OF_POSSIBLE if finding.verdict == Verdict.POSSIBLE else 1.0
        importance = _importance(finding, rows, peak_bytes) if failed else math.inf
        is_last = finding.verdict == Verdict.NOT_A_PROBLEM or finding.fix is None
        return is_last, importance, -size_bytes * weight, finding.verdict.rank

    return tuple(sorted(findings, key=rank))


def _importance(finding: Finding, rows: Rows, peak_bytes: int) -> float:
    row = rows.get(finding.id)
    if row is None or row.importance is None:
        return math.inf
    if finding.size_bytes < row.important_from_share * peak_bytes:
        return math.inf
    return row.importance


def with_finding(
    findings: Sequence[Finding], finding: Finding, takes_place_of: str
) -> tuple[Finding, ...]:
    """The findings, ranked, with one more: in the place of the one that says less of the same
    bytes; without that, before the first that saves less.
    """
    ids = [earlier.id for earlier in findings]
    if takes_place_of in ids:
        position = ids.index(takes_place_of)
        return (*findings[:position], finding, *findings[position + 1 :])
    saves_less = [
        earlier.fix is None or earlier.size_bytes < finding.size_bytes for earlier in findings
    ]
    position = saves_less.index(True) if True in saves_less else len(findings)
    return (*findings[:position], finding, *findings[position:])


def least_advice(peak_bytes: int, failed_request_bytes: int | None) -> float:
    """The fewest bytes that advice is worth: of the peak, and of the request that failed."""
    return LEAST_SHARE * min(peak_bytes, failed_request_bytes or peak_bytes)
