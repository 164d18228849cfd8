"""Differences of flight records: ranks that did not call the collective that others wait in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from vramlens.ground.verdict import Verdict
from vramlens.ranks.flights.collectives import CollectiveProblem
from vramlens.ranks.rank_difference import RankDifference
from vramlens.ranks.rank_words import named
from vramlens.units import agreeing

_MOST_CALLS = 4
_TITLES = {
    "no_record": "left no flight record, and the others are waiting:",
    "ended": "came to the end of its program, and the others are waiting:",
    "missing": "did not call the collective that the others are waiting in:",
    "waiting": "did not call the collective that the others are waiting in:",
    "extra": "called a collective that the rest of the group did not call:",
    "not_completed": "all called the same collective, and it did not complete:",
}
_SAME_CALLS = "make every rank of the group call the same collectives in the same order"
_SAME_STEPS = (
    "let all ranks take as many steps, and decide together when to stop (all_reduce the decision)"
)
_MISMATCH = "called different collectives at"


@dataclass(frozen=True, eq=False)
class _Group:
    """The ranks of a process group, at the call in which they differ.

    Attributes:
        rows: what each did.
    """

    rows: Sequence[CollectiveProblem]

    @cached_property
    def suspected(self) -> list[CollectiveProblem]:
        """Those that may be at fault."""
        return [row for row in self.rows if row.suspected]

    @cached_property
    def at_fault(self) -> set[int]:
        """The ranks of those."""
        return {row.rank for row in self.suspected}

    @cached_property
    def absent(self) -> set[int]:
        """The ranks of those that called nothing."""
        return {row.rank for row in self.suspected if row.name is None}

    @cached_property
    def waiting(self) -> set[int]:
        """The ranks that wait for them."""
        return {row.rank for row in self.rows if not row.suspected}

    @cached_property
    def stuck(self) -> set[int]:
        """The ranks that wait within the group; where few called what they should not, all do."""
        return {row.rank for row in self.rows if row.name is not None or row.problem == "extra"}

    @cached_property
    def taking_part(self) -> set[int]:
        """The ranks that may be at fault or are stuck."""
        return self.at_fault | self.stuck

    def waits_for(self, failed: Set[int]) -> bool:
        """Whether all that may be at fault called nothing, and are some that failed."""
        return bool(self.suspected) and all(
            row.name is None and row.rank in failed for row in self.suspected
        )


@dataclass(frozen=True, eq=False)
class Desyncs:
    """What flight records tell together of ranks that wait for each other.

    Attributes:
        problems: the calls in which ranks differ.
        failed: ranks that failed by themselves: one that is gone calls nothing.
        ended: ranks whose program came to its end.
        stopped: ranks that were stopped from outside.
    """

    problems: Sequence[CollectiveProblem]
    failed: Set[int]
    ended: Set[int] = frozenset()
    stopped: Set[int] = frozenset()

    def differences(self) -> list[RankDifference]:
        """The ranks that are at fault as far as flight records tell, one difference a group; none
        where those that are missing failed, or wait in another group for one that is at fault there.
        """
        return [
            _difference(group, self.ended)
            for name, group in self._groups.items()
            if not group.waits_for(self.failed)
            and name not in self._causes
            and not self._was_under_way(group.rows)
        ]

    def _was_under_way(self, rows: Sequence[CollectiveProblem]) -> bool:
        """True if all ranks of a group called the same, and were stopped from outside before it was
        done.
        """
        is_same = all(row.problem == "not_completed" for row in rows)
        return is_same and all(row.rank in self.stopped for row in rows)

    def notes(self) -> Iterator[str]:
        """Yields one sentence a group whose ranks wait for one that failed, or that waits elsewhere."""
        for name, group in self._groups.items():
            if self._was_under_way(group.rows):
                ranks = named([row.rank for row in group.rows])
                yield (
                    f"{ranks} were in call {group.rows[0].seq} of process group {name}, all in the"
                    " same one, when they were stopped"
                )
            elif group.waits_for(self.failed):
                yield f"{_waiting_words(group)}, which had failed"
            elif name in self._causes:
                verb = agreeing(len(group.suspected), "waits", "wait")
                yield f"{_waiting_words(group)}, which {verb} in process group {self._causes[name]}"
        for one, other in combinations(self._groups, 2):
            if _wait_for_each_other(self._groups[one], self._groups[other]):
                yield (
                    f"process groups {one} and {other} wait for each other: a rank that is missing"
                    " in one of them waits in the other"
                )

    @cached_property
    def _groups(self) -> dict[str, _Group]:
        by_group: dict[str, list[CollectiveProblem]] = defaultdict(list)
        for row in self.problems:
            by_group[row.group].append(row)
        return {name: _Group(rows) for name, rows in by_group.items()}

    @cached_property
    def _causes(self) -> dict[str, str]:
        return _groups_of_causes(self._groups)


def _groups_of_causes(groups: Mapping[str, _Group]) -> dict[str, str]:
    """Of groups whose ranks wait for some that are stuck in another group, that one, where it is a
    fault of its own or leads to one. Groups that wait for each other in a circle are all faults.
    """
    causes = {name: _cause_of(name, groups) for name in groups}
    return {name: cause for name, cause in causes.items() if cause and _ends(name, causes)}


def _cause_of(name: str, groups: Mapping[str, _Group]) -> str:
    """The other group in which all the ranks that did not come take part, one of them stuck, for a
    fault of none that waits here; "" where there is none.
    """
    group = groups[name]
    for other_name in sorted(groups):
        other = groups[other_name]
        are_stuck = group.absent & other.stuck and group.absent <= other.taking_part
        is_other_fault = other.at_fault and not other.at_fault & group.waiting
        if other_name != name and are_stuck and is_other_fault:
            return other_name
    return ""


def _ends(group: str, causes: Mapping[str, str]) -> bool:
    """True if one cause after the other leads to a group that has none."""
    passed = {group}
    while causes[group]:
        group = causes[group]
        if group in passed:
            return False
        passed.add(group)
    return True


def _wait_for_each_other(group: _Group, other: _Group) -> bool:
    """True if ranks that are missing in each of two groups wait in the other one."""
    return bool(group.absent & other.waiting and other.absent & group.waiting)


def _waiting_words(group: _Group) -> str:
    waiting = [row.rank for row in group.rows if not row.suspected]
    verb = agreeing(len(waiting), "waits", "wait")
    call = f"call {group.rows[0].seq} of process group {group.rows[0].group}"
    suspected = named([row.rank for row in group.suspected])
    return f"{named(waiting)} {verb} in {call} for {suspected}"


def _difference(group: _Group, ended: Set[int]) -> RankDifference:
    rows, suspected = group.rows, group.suspected
    blamed = suspected or rows
    name, seq, problem = rows[0].group, rows[0].seq, rows[0].problem
    if problem == "no_record" and suspected and all(row.rank in ended for row in suspected):
        problem = "ended"
    place = next((row.place for row in blamed if row.place is not None), None)
    where = f" ({place})" if place else ""
    return RankDifference(
        ranks=tuple(sorted(row.rank for row in blamed)),
        cause="desync",
        verdict=Verdict.LIKELY if problem in ("no_record", "ended") else Verdict.PROVEN,
        bytes=0,
        place=place,
        title=f"{_title(problem, rows)} call {seq} of process group {name}",
        evidence=(
            f"process group {name}, call {seq}: {_calls(rows)}",
            *(row.detail for row in suspected[:2] if row.name is None and row.detail),
            *([] if problem == "ended" else _caveat(suspected)),
        ),
        fix=_SAME_STEPS if problem == "ended" else f"{_SAME_CALLS}{where}",
    )


def _title(problem: str, rows: Sequence[CollectiveProblem]) -> str:
    title = _TITLES.get(problem, _MISMATCH)
    waiting = [row.rank for row in rows if not row.suspected]
    return title.replace("the others are", f"{named(waiting)} is") if len(waiting) == 1 else title


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
    return (
        f"{row.name}{shapes} at {row.place}"
        if row.place
        else f"{row.name}{shapes} (line not recorded)"
    )
