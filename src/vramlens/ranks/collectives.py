"""Collectives: where the ranks of a group stopped doing the same thing, from their flight records.

Collectives of a group are numbered alike on every rank, so the first number at which the ranks
differ is where it went wrong; what comes after it is a consequence.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from vramlens.analyses.finding import Place
from vramlens.trace.flight import Collective, FlightGroup, FlightRecord

_ANY_SIZES = ("all_to_all", "alltoall", "gather", "scatter", "send", "recv", "coalesced")
"""Of calls whose sizes may differ from rank to rank, a part of the name (``reduce_scatter`` is
told apart below).
"""


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
            no_record (it left no flight record), waiting (it waits for those), not_completed (all
            called it, and it never ended).
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
    found: dict[str, FlightGroup] = {}
    for flight in flights.values():
        for key, group in flight.groups.items():
            found.setdefault(group.name or key, group)
    return found


def collective_problems(flights: Mapping[int, FlightRecord]) -> tuple[CollectiveProblem, ...]:
    """The first collective of each group in which its ranks differ; () if they all agree."""
    groups = all_groups(flights)
    called: dict[str, dict[int, dict[int, Collective]]] = defaultdict(lambda: defaultdict(dict))
    for rank, flight in flights.items():
        for one in flight.collectives:
            if not one.is_p2p:
                called[one.group][rank][one.seq] = one
    found: list[CollectiveProblem] = []
    for name, by_rank in sorted(called.items()):
        group = groups.get(name)
        members = (
            sorted(set(group.ranks) & set(flights))
            if group is not None and group.ranks
            else sorted(by_rank)
        )
        label = (
            name
            if group is None or group.description in ("", "default_pg")
            else f"{name} ({group.description})"
        )
        silent = sorted(set(group.ranks) - set(flights)) if group is not None else []
        if len(members) > 1 or (members and silent):
            rows = _first_problem(label, {rank: by_rank.get(rank, {}) for rank in members})
            if silent and rows and rows[0].problem == "not_completed":
                rows = _without_record(rows, silent)
            found += rows
    return tuple(found)


def _without_record(rows: list[CollectiveProblem], silent: list[int]) -> list[CollectiveProblem]:
    """All whose records are there wait in the same call: whom they wait for are those without
    one.
    """
    first = rows[0]
    lost = [
        CollectiveProblem(
            rank,
            first.group,
            first.seq,
            None,
            "unknown",
            None,
            "no_record",
            True,
            "no flight record",
        )
        for rank in silent
    ]
    return [*lost, *(replace(row, problem="waiting") for row in rows)]


def _first_problem(
    group: str, by_rank: Mapping[int, Mapping[int, Collective]]
) -> list[CollectiveProblem]:
    # The rings of the ranks may begin at different numbers: what one of them no longer holds cannot
    #     be compared.
    first = max((min(calls) for calls in by_rank.values() if calls), default=0)
    numbers = sorted({seq for calls in by_rank.values() for seq in calls if seq >= first})
    for seq in numbers:
        here = {rank: calls[seq] for rank, calls in by_rank.items() if seq in calls}
        absent = [rank for rank in by_rank if rank not in here]
        problem = _differs(here)
        if problem:
            return _rows(group, seq, here, problem)
        if absent and any(one.state != "completed" for one in here.values()):
            return _missing(group, seq, here, absent, by_rank)
        if (
            not absent
            and seq == numbers[-1]
            and all(one.state != "completed" for one in here.values())
        ):
            return _rows(group, seq, here, "not_completed")
    return []


def _differs(here: Mapping[int, Collective]) -> str:
    calls = list(here.values())
    if len({one.name for one in calls}) > 1:
        return "name_mismatch"
    if calls and not _may_differ(calls[0].name):
        if len({_numbers(one) for one in calls}) > 1:
            return "size_mismatch"
        if len({one.dtypes for one in calls if one.dtypes}) > 1:
            return "dtype_mismatch"
    return ""


def _may_differ(name: str) -> bool:
    plain = name.replace("reduce_scatter", "").replace("all_gather", "").replace("allgather", "")
    return any(each in plain for each in _ANY_SIZES)


def _numbers(one: Collective) -> tuple[int, ...]:
    return tuple(prod(shape) for shape in one.input_sizes)


def _rows(
    group: str, seq: int, here: Mapping[int, Collective], problem: str
) -> list[CollectiveProblem]:
    def kind(one: Collective) -> object:
        return {
            "name_mismatch": one.name,
            "size_mismatch": _numbers(one),
            "dtype_mismatch": one.dtypes,
        }.get(problem)

    counts = Counter(kind(one) for one in here.values())
    (usual, most), *others = counts.most_common()
    clear = bool(others) and most > others[0][1]
    return [
        CollectiveProblem(
            rank=rank,
            group=group,
            seq=seq,
            name=one.name,
            state=one.state,
            place=_place(one),
            problem=problem,
            suspected=clear and kind(one) != usual,
            detail=f"{_shapes(one)} {', '.join(one.dtypes[:2])}".strip(),
        )
        for rank, one in sorted(here.items())
    ]


def _missing(
    group: str,
    seq: int,
    here: Mapping[int, Collective],
    absent: list[int],
    by_rank: Mapping[int, Mapping[int, Collective]],
) -> list[CollectiveProblem]:
    found = []
    for rank in absent:
        calls = by_rank[rank]
        latest = calls[max(calls)] if calls else None
        detail = "called nothing in this group"
        if latest is not None:
            where = f" at {_place(latest)}" if latest.user_frame else ""
            detail = (
                f"its last call here is number {latest.seq}, {latest.name}{where}, {latest.state}"
            )
        place = None if latest is None else _place(latest)
        found.append(
            CollectiveProblem(rank, group, seq, None, "missing", place, "missing", True, detail)
        )
    found += [
        CollectiveProblem(
            rank, group, seq, one.name, one.state, _place(one), "waiting", False, _shapes(one)
        )
        for rank, one in sorted(here.items())
    ]
    return found


def _place(one: Collective) -> Place | None:
    frame = one.user_frame
    return None if frame is None else Place(frame.file, frame.line, frame.function)


def _shapes(one: Collective) -> str:
    return ", ".join(str(list(shape)) for shape in one.input_sizes[:3])
