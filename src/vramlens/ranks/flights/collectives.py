"""Collectives: where the ranks of a group stopped doing the same thing, from their flight records.

Collectives of a group are numbered alike on every rank, so the first number at which the ranks
differ is where it went wrong; what comes after it is a consequence.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import prod

from vramlens.analyses.finding import Place
from vramlens.trace.flight import Collective, FlightGroup, FlightRecord
from vramlens.units import counted

_ANY_SIZES = ("all_to_all", "alltoall", "gather", "scatter", "send", "recv", "coalesced")
"""Of calls whose sizes may differ from rank to rank, a part of the name (``reduce_scatter`` is
told apart below).
"""
_PLAIN_GROUPS = ("", "default_pg", "undefined")
Calls = Mapping[int, Collective]
"""The collectives of one rank in one group, by number."""


@dataclass(frozen=True, slots=True)
class CollectiveProblem:
    """A rank's part in a collective that went wrong.

    Attributes:
        rank: which.
        group: the group's name and what the program called it.
        seq: the collective's number in its group.
        name: what this rank called; None if it called nothing.
        state: scheduled, started, completed; "missing" if it called nothing.
        place: the user line that called it; None where unknown (the backward pass).
        problem: name_mismatch, size_mismatch, dtype_mismatch, missing (this rank never called it),
            extra (it called it, most others never), no_record (it left no flight record), waiting
            (it waits for those), not_completed (all called it, and it never ended).
        suspected: whether this rank is the odd one out; False where nobody can tell.
        detail: shapes, or what it did last.
    """

    rank: int
    group: str
    seq: int
    name: str | None
    state: str
    place: Place | None
    problem: str
    suspected: bool
    detail: str = ""


def all_groups(flights: Mapping[int, FlightRecord]) -> dict[str, FlightGroup]:
    """Every process group that a rank tells of, by name."""
    groups: dict[str, FlightGroup] = {}
    for flight in flights.values():
        for key, group in flight.groups.items():
            groups.setdefault(group.name or key, group)
    return groups


def collective_problems(flights: Mapping[int, FlightRecord]) -> tuple[CollectiveProblem, ...]:
    """The first collective of each group in which its ranks differ; () if they all agree."""
    groups = all_groups(flights)
    problems: list[CollectiveProblem] = []
    waiting_by_group = _waiting_point_to_point(flights)
    for name, calls_by_rank in sorted(_calls_by_group(flights).items()):
        group = groups.get(name, FlightGroup(name, "", ()))
        present = sorted(set(group.ranks) & set(flights)) if group.ranks else sorted(calls_by_rank)
        silent = sorted(set(group.ranks) - set(flights))
        if len(present) + len(silent) < 2 or not present:
            continue
        label = name if group.description in _PLAIN_GROUPS else f"{name} ({group.description})"
        rows = _first_problem(label, {rank: calls_by_rank.get(rank, {}) for rank in present})
        if _is_of_the_callers(rows, waiting_by_group[name]):
            rows = [
                replace(row, problem="extra", suspected=row.problem == "waiting") for row in rows
            ]
        if silent and rows and rows[0].problem == "not_completed":
            rows = _without_record(rows, silent)
        problems += rows
    return tuple(problems)


def _is_of_the_callers(rows: Sequence[CollectiveProblem], waiting: Set[int]) -> bool:
    """True if few ranks of a group are in a collective while the others all wait to send or receive
    within the group: these went on, and those few called what they should not.
    """
    absent = {row.rank for row in rows if row.problem == "missing"}
    return 2 * len(absent) > len(rows) and absent <= waiting


def _waiting_point_to_point(flights: Mapping[int, FlightRecord]) -> dict[str, set[int]]:
    """The ranks that wait to send or receive, by the group within which they do."""
    waiting: dict[str, set[int]] = defaultdict(set)
    for rank, flight in flights.items():
        for call in flight.collectives:
            if call.is_p2p and call.state != "completed":
                waiting[call.group].add(rank)
    return waiting


def _calls_by_group(
    flights: Mapping[int, FlightRecord],
) -> dict[str, dict[int, dict[int, Collective]]]:
    """The collectives of each group by rank and number."""
    by_group: dict[str, dict[int, dict[int, Collective]]] = defaultdict(lambda: defaultdict(dict))
    for rank, flight in flights.items():
        for call in flight.collectives:
            if not call.is_p2p:
                by_group[call.group][rank][call.seq] = call
    return by_group


def _without_record(rows: list[CollectiveProblem], silent: list[int]) -> list[CollectiveProblem]:
    """All whose records are there wait in the same call: whom they wait for are those without
    one.
    """
    silent_rows = [
        CollectiveProblem(
            rank=rank,
            group=rows[0].group,
            seq=rows[0].seq,
            name=None,
            state="unknown",
            place=None,
            problem="no_record",
            suspected=True,
            detail="no flight record",
        )
        for rank in silent
    ]
    return [*silent_rows, *(replace(row, problem="waiting") for row in rows)]


def _first_problem(group: str, calls_by_rank: Mapping[int, Calls]) -> list[CollectiveProblem]:
    for seq in _comparable_numbers(calls_by_rank):
        callers = {rank: calls[seq] for rank, calls in calls_by_rank.items() if seq in calls}
        absent = [rank for rank in calls_by_rank if rank not in callers]
        incomplete = [call for call in callers.values() if call.state != "completed"]
        problem = _mismatch(list(callers.values()))
        if problem:
            return _rows(group, seq, callers, problem)
        if absent and incomplete:
            absent_rows = [_absent_row(group, seq, rank, calls_by_rank[rank]) for rank in absent]
            return absent_rows + _waiting_rows(group, seq, callers)
        if len(incomplete) == len(calls_by_rank):  # of what is queued behind it, nothing follows
            return _rows(group, seq, callers, "not_completed")
    return []


def _comparable_numbers(calls_by_rank: Mapping[int, Calls]) -> list[int]:
    """The numbers of a group's collectives, ascending, from the first that every rank still has.

    The rings of the ranks may begin at different numbers: what one of them no longer holds cannot
    be compared.
    """
    rings = [calls for calls in calls_by_rank.values() if calls]
    first = max(map(min, rings), default=0)
    return sorted(seq for seq in set().union(*rings) if seq >= first)


def _mismatch(calls: Sequence[Collective]) -> str:
    """The way in which calls of one number differ; empty if they do not."""
    if len({call.name for call in calls}) > 1:
        return "name_mismatch"
    if _may_differ(calls[0].name):
        return ""
    if len({_element_counts(call) for call in calls}) > 1:
        return "size_mismatch"
    if len({call.dtypes for call in calls if call.dtypes}) > 1:
        return "dtype_mismatch"
    return ""


def _may_differ(name: str) -> bool:
    plain = name.replace("reduce_scatter", "").replace("all_gather", "").replace("allgather", "")
    return any(part in plain for part in _ANY_SIZES)


def _element_counts(call: Collective) -> tuple[int, ...]:
    return tuple(prod(shape) for shape in call.input_sizes)


_COMPARED: Mapping[str, Callable[[Collective], object]] = {
    "name_mismatch": lambda call: call.name,
    "size_mismatch": _element_counts,
    "dtype_mismatch": lambda call: call.dtypes,
    "not_completed": lambda _call: None,
}
"""By problem, what the calls differ in."""


def _rows(
    group: str, seq: int, callers: Mapping[int, Collective], problem: str
) -> list[CollectiveProblem]:
    """A row a caller; those that differ from a clear majority are suspected."""
    kind_of = _COMPARED[problem]
    kinds = {rank: kind_of(call) for rank, call in callers.items()}
    (usual_kind, usual_count), *minorities = Counter(kinds.values()).most_common()
    is_clear = bool(minorities) and usual_count > minorities[0][1]
    return [
        replace(
            row,
            problem=problem,
            suspected=is_clear and kinds[row.rank] != usual_kind,
            detail=_with_types(row.detail, callers[row.rank]),
        )
        for row in _waiting_rows(group, seq, callers)
    ]


def _absent_row(group: str, seq: int, rank: int, calls: Calls) -> CollectiveProblem:
    place, detail = None, "made no calls in this group"
    if calls:
        last_call = calls[max(calls)]
        place = _place(last_call)
        where = f" at {place}" if place else ""
        detail = (
            f"its last call in this group is number {last_call.seq}, {last_call.name}{where},"
            f" {last_call.state}"
        )
    return CollectiveProblem(
        rank=rank,
        group=group,
        seq=seq,
        name=None,
        state="missing",
        place=place,
        problem="missing",
        suspected=True,
        detail=detail,
    )


def _waiting_rows(
    group: str, seq: int, callers: Mapping[int, Collective]
) -> list[CollectiveProblem]:
    return [
        CollectiveProblem(
            rank=rank,
            group=group,
            seq=seq,
            name=call.name,
            state=call.state,
            place=_place(call),
            problem="waiting",
            suspected=False,
            detail=", ".join(map(_shape, call.input_sizes[:3])),
        )
        for rank, call in sorted(callers.items())
    ]


def _place(call: Collective) -> Place | None:
    frame = call.user_frame
    return None if frame is None else frame.place


def _shape(sizes: Sequence[int]) -> str:
    return counted(sizes[0], "element") if len(sizes) == 1 else str(list(sizes))


def _with_types(shapes: str, call: Collective) -> str:
    types = f"({', '.join(call.dtypes[:2])})" if call.dtypes else ""
    return " ".join(filter(None, (shapes, types)))
