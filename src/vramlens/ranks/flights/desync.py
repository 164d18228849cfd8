"""Differences of flight records: ranks that did not call the collective that others wait in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set

from vramlens.ground.verdict import Verdict
from vramlens.ranks.flights.collectives import CollectiveProblem
from vramlens.ranks.rank_difference import RankDifference
from vramlens.ranks.rank_words import named

_MOST_CALLS = 4
_TITLES = {
    "no_record": "left no flight record, and the others are waiting:",
    "missing": "did not call the collective that the others are waiting in:",
    "waiting": "did not call the collective that the others are waiting in:",
    "extra": "called a collective that the others of the group did not, and waits in it:",
    "not_completed": "all called the same collective, and it did not complete:",
}
_SAME_CALLS = "make every rank of the group call the same collectives in the same order"
_MISMATCH = "called different collectives as"


def desync_differences(
    problems: Sequence[CollectiveProblem], failed: Set[int]
) -> list[RankDifference]:
    """The ranks that are at fault as far as flight records tell, one difference a group; none where
    those that are missing failed, since a rank that is gone calls nothing, or wait in another group
    for one that is at fault there.
    """
    return [
        _difference(rows)
        for rows in _by_group(problems)
        if not _are_gone(rows, failed) and not _group_of_cause(rows, problems)
    ]


def notes_of_waiting(problems: Sequence[CollectiveProblem], failed: Set[int]) -> Iterator[str]:
    """Yields one sentence a group whose ranks wait for one that failed, or that waits elsewhere."""
    for rows in _by_group(problems):
        group = _group_of_cause(rows, problems)
        if _are_gone(rows, failed):
            yield f"{_waiting(rows)}, which had failed"
        elif group:
            verb = "waits" if sum(row.suspected for row in rows) == 1 else "wait"
            yield f"{_waiting(rows)}, which {verb} in process group {group}"


def _group_of_cause(
    rows: Sequence[CollectiveProblem], problems: Sequence[CollectiveProblem]
) -> str:
    """The other group in which all the ranks that did not come are stuck for a fault of one of
    themselves; "" where there is none.
    """
    absent = {row.rank for row in rows if row.suspected and row.name is None}
    waiting = {row.rank for row in rows if not row.suspected}
    for others in _by_group(problems):
        stuck = {row.rank for row in others}
        at_fault = {row.rank for row in others if row.suspected}
        is_other = others[0].group != rows[0].group
        if is_other and absent and absent <= stuck and at_fault and not at_fault & waiting:
            return others[0].group
    return ""


def _by_group(problems: Sequence[CollectiveProblem]) -> list[list[CollectiveProblem]]:
    by_group = defaultdict(list)
    for row in problems:
        by_group[row.group].append(row)
    return list(by_group.values())


def _are_gone(rows: Sequence[CollectiveProblem], failed: Set[int]) -> bool:
    gone = [row for row in rows if row.suspected]
    return bool(gone) and all(row.name is None and row.rank in failed for row in gone)


def _waiting(rows: Sequence[CollectiveProblem]) -> str:
    gone = named([row.rank for row in rows if row.suspected])
    waiting = [row for row in rows if not row.suspected]
    verb = "waits" if len(waiting) == 1 else "wait"
    call = f"call {rows[0].seq} of process group {rows[0].group}"
    return f"{named([row.rank for row in waiting])} {verb} in {call} for {gone}"


def _difference(rows: Sequence[CollectiveProblem]) -> RankDifference:
    suspected = [row for row in rows if row.suspected]
    blamed = suspected or rows
    group, seq, problem = rows[0].group, rows[0].seq, rows[0].problem
    place = next((row.place for row in blamed if row.place is not None), None)
    where = f" ({place})" if place else ""
    return RankDifference(
        ranks=tuple(sorted(row.rank for row in blamed)),
        cause="desync",
        verdict=Verdict.LIKELY if problem == "no_record" else Verdict.PROVEN,
        bytes=0,
        place=place,
        title=f"{_TITLES.get(problem, _MISMATCH)} call {seq} of process group {group}",
        evidence=(
            f"process group {group}, call {seq}: {_calls(rows)}",
            *(row.detail for row in suspected[:2] if row.name is None and row.detail),
            *_caveat(suspected),
        ),
        fix=f"{_SAME_CALLS}{where}",
    )


def _caveat(suspected: Sequence[CollectiveProblem]) -> list[str]:
    if not suspected:
        return ["these records do not show which rank is wrong"]
    if all(row.problem == "no_record" for row in suspected):
        return ["a rank that failed or skipped the call often writes no record"]
    return []


def _calls(rows: Sequence[CollectiveProblem]) -> str:
    """The calls and who made them, the first few."""
    ranks_by_call = defaultdict(list)
    for row in rows:
        ranks_by_call[_call(row)].append(row.rank)
    calls = list(ranks_by_call.items())[:_MOST_CALLS]
    return "; ".join(f"{named(ranks)}: {call}" for call, ranks in calls)


def _call(row: CollectiveProblem) -> str:
    if row.name is None:
        return "no record" if row.problem == "no_record" else "no call"
    shapes = f" of {row.detail}" if row.detail else ""
    return f"{row.name}{shapes} at {row.place or 'no recorded line'}"
