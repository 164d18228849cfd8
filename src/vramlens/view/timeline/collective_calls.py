"""Collectives of a rank: when it called them, with whom, of what size, and which of them never
finished.

Two sources, which know different things. PyTorch marks each call in the memory recording itself
(``nccl:all_reduce``): its name, and how long the call took to return. A flight record knows the
group, the number, the tensors, the state and the line. Both tell the time of the machine's clock,
as the events do, so that they need no more than to be laid over
each other: of one call the flight record's time lies within the mark, by some ten microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vramlens.trace import DeviceTrace, Trace
from vramlens.trace.flight import Collective, FlightGroup, FlightRecord
from vramlens.trace.stacks import is_user_file
from vramlens.units import agreeing, first_of
from vramlens.view.columns import Columns
from vramlens.view.texts import Texts
from vramlens.view.timeline.joined_calls import STATES, JoinedCall, input_bytes, joined, within
from vramlens.view.timeline.marked_regions import LONGEST_US, regions_of

if TYPE_CHECKING:  # most pages need no more of it than these names
    from vramlens.ranks.flights.collectives import CollectiveProblem

_MOST_NAMED = 4
_MOST_STACKS = 20_000
"""A flight record's ring holds some thousand calls; one that holds more different stacks was
made up.
"""


@dataclass(frozen=True, slots=True)
class RankFlight:
    """A rank's number and its flight record."""

    rank: int
    record: FlightRecord


Problems = Mapping[tuple[int, str, int], str]
"""By rank, group as it is named in words, and number of the call: what went wrong there."""


def problems_of(flights: Sequence[RankFlight | None]) -> Problems:
    """Where the ranks stopped doing the same thing, in words; empty for less than two flight
    records.
    """
    by_rank = {flight.rank: flight.record for flight in flights if flight is not None}
    if len(by_rank) < 2:
        return {}
    from vramlens.ranks.flights.collectives import collective_problems

    by_call: dict[tuple[str, int], list[CollectiveProblem]] = {}
    for problem in collective_problems(by_rank):
        by_call.setdefault((problem.group, problem.seq), []).append(problem)
    return {
        (problem.rank, group, seq): _words(rows)
        for (group, seq), rows in by_call.items()
        for problem in rows
    }


def _words(rows: Sequence[CollectiveProblem]) -> str:
    if rows[0].problem == "extra":
        callers = [f"rank {row.rank}" for row in rows if row.suspected]
        names = ", ".join(callers[:_MOST_NAMED])
        return f"Only {names}{_more(callers)} called it; the rest of the group did not."
    absent = [row for row in rows if row.problem in ("missing", "no_record")]
    if absent:
        named = [f"rank {row.rank}, {_absence(row)}" for row in absent[:_MOST_NAMED]]
        return f"It waits for {'; '.join(named)}{_more(absent)}."
    if rows[0].problem == "not_completed":
        return "All of its ranks called it, and it never finished."
    called = [f"rank {row.rank} {row.name} {row.detail}".rstrip() for row in rows[:_MOST_NAMED]]
    return f"The ranks do not agree here: {'; '.join(called)}{_more(rows)}."


def _absence(problem: CollectiveProblem) -> str:
    if problem.problem == "no_record":
        return "of which no flight record is here"
    return f"which never called it ({problem.detail})"


def _more(rows: Sequence[object]) -> str:
    return f"; {len(rows) - _MOST_NAMED:,} more" if len(rows) > _MOST_NAMED else ""


def has_calls(trace: Trace, device: int) -> bool:
    """Whether a device is the one that a process called its collectives on."""
    marked_devices = [
        number
        for number in trace.devices
        if regions_of(trace, trace.devices[number], collectives=True)
    ]
    return device in marked_devices if marked_devices else device == trace.main_device


def collectives_of(
    trace: Trace,
    device: DeviceTrace,
    start_us: int,
    flight: RankFlight | None,
    problems: Problems,
    columns: Columns,
    texts: Texts,
) -> dict[str, Any] | None:
    """A rank's calls as columns, in order of time, and what is left out; None where nothing
    tells of any.
    """
    marks = regions_of(trace, device, collectives=True)
    if flight is not None and not has_calls(trace, device.device):
        flight = None
    if not marks and flight is None:
        return None
    if not device.is_timed:
        return _empty(columns, ["This recording has no times: its collectives cannot be placed."])
    last_us = min(int(device.clock_us[-1]) - start_us, LONGEST_US)
    recorded = flight.record.collectives if flight is not None else ()
    calls, notes = within(joined(marks, recorded), start_us, last_us)
    table = _CallTable(flight, problems, texts)
    rows = [table.row(call, start_us, last_us) for call in calls]
    numbers = np.array(rows, np.int64).reshape(-1, len(_COLUMNS))
    notes += _notes_on(flight, has_all_stacks=not table.stacks.is_full)
    return {
        "n": len(numbers),
        "notes": notes,
        "groups": table.groups.table,
        "states": list(STATES),
        "flight": flight is not None,
        **{
            name: columns.add(numbers[:, place], differences=name == "at")
            for place, name in enumerate(_COLUMNS)
        },
        **table.stacks.columns(columns),
    }


class _CallTable:
    """Makes the row of each call, and gathers the groups and stacks that rows refer to."""

    def __init__(self, flight: RankFlight | None, problems: Problems, texts: Texts) -> None:
        groups = flight.record.groups if flight is not None else {}
        described = {group.name or key: group for key, group in groups.items()}
        self.groups = _Groups(described, texts)
        self.stacks = _Stacks(texts)
        self._rank = flight.rank if flight is not None else -1
        self._problems, self._texts = problems, texts

    def row(self, call: JoinedCall, start_us: int, last_us: int) -> tuple[int, ...]:
        """The numbers of one call, in the order of ``_COLUMNS``."""
        entry = call.flight
        after_us = call.at_us - start_us
        number = self._texts.number
        return (
            min(after_us, last_us),
            max(after_us - last_us, 0),
            call.took,
            call.finished,
            number(call.name),
            self.groups.number(entry),
            entry.seq + 1 if entry is not None else 0,
            call.state,
            input_bytes(entry),
            number(_shapes(entry)) + 1 if entry is not None else 0,
            self.stacks.number(entry),
            self._problem(entry),
        )

    def _problem(self, entry: Collective | None) -> int:
        if entry is None or entry.is_p2p:
            return 0
        words = self._problems.get((self._rank, self.groups.label(entry.group), entry.seq))
        return 0 if words is None else self._texts.number(words) + 1


_COLUMNS = (
    "at",
    "late",
    "took",
    "finished",
    "name",
    "group",
    "seq",
    "state",
    "bytes",
    "shape",
    "stack",
    "problem",
)
"""at: microseconds after the first event, and late: how much later than the last one. The others
are 0 where unknown,
else one more than: microseconds until the call returned, and until it was noticed to be
    finished; numbers of texts.
"""


def _empty(columns: Columns, notes: list[str]) -> dict[str, Any]:
    no_rows = np.zeros(0, np.int64)
    empty = {name: columns.add(no_rows) for name in (*_COLUMNS, *_Stacks.COLUMNS)}
    return {"n": 0, "notes": notes, "groups": [], "states": list(STATES), "flight": False, **empty}


def _notes_on(flight: RankFlight | None, *, has_all_stacks: bool) -> Iterator[str]:
    if flight is None:
        yield "A flight record opened with it adds groups, sizes, states and lines."
    if not has_all_stacks:
        yield (
            "Stacks are shown of some calls only:"
            f" there are more than {_MOST_STACKS:,} different ones."
        )


def _shapes(entry: Collective) -> str:
    def listed(shapes: tuple[tuple[int, ...], ...]) -> str:
        return first_of([list(shape) for shape in shapes], _MOST_NAMED)

    types = ", ".join(dict.fromkeys(entry.dtypes))
    turned = (
        f" to {listed(entry.output_sizes)}"
        if entry.output_sizes not in ((), entry.input_sizes)
        else ""
    )
    return f"{listed(entry.input_sizes)}{turned} {types}".strip()


class _Groups:
    """Process groups, numbered from 1 in the order in which they are met."""

    def __init__(self, described_groups: Mapping[str, FlightGroup], texts: Texts) -> None:
        self._described, self._texts = described_groups, texts
        self._numbers: dict[str, int] = {}
        self.table: list[list[int]] = []
        """Of each, the texts of its name, and of its ranks."""

    def number(self, call: Collective | None) -> int:
        if call is None:
            return 0
        if call.group not in self._numbers:
            self._numbers[call.group] = len(self._numbers) + 1
            group = self._described.get(call.group)
            described = call.description or (group.description if group is not None else "")
            name = f"{call.group} ({described})" if described else call.group
            self.table.append([self._texts.number(name), self._texts.number(self._ranks(group))])
        return self._numbers[call.group]

    def label(self, name: str) -> str:
        """The group as ``collective_problems`` names it."""
        group = self._described.get(name)
        return (
            name
            if group is None or group.description in ("", "default_pg")
            else f"{name} ({group.description})"
        )

    @staticmethod
    def _ranks(group: FlightGroup | None) -> str:
        if group is None or not group.ranks:
            return ""
        first, last = group.ranks[0], group.ranks[-1]
        if len(group.ranks) <= 2 * _MOST_NAMED:
            noun = agreeing(len(group.ranks), "rank", "ranks")
            return f"{noun} {', '.join(map(str, group.ranks))}"
        return f"{len(group.ranks):,} ranks, {first} to {last}"


class _Stacks:
    """The stacks of calls, each once."""

    COLUMNS = ("frame_file", "frame_line", "frame_function", "frame_user", "stack_starts")

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._numbers: dict[Any, int] = {}
        self._frames: list[tuple[int, int, int, int]] = []
        self._starts = [0]

    def number(self, call: Collective | None) -> int:
        """The stack's number, from 1; 0 without one."""
        if call is None or not call.frames:
            return 0
        if call.frames not in self._numbers:
            if len(self._numbers) == _MOST_STACKS:
                return 0
            self._numbers[call.frames] = len(self._numbers) + 1
            number = self._texts.number
            self._frames += [
                (
                    number(frame.file),
                    max(frame.line, 0),
                    number(frame.function),
                    is_user_file(frame.file),
                )
                for frame in call.frames
            ]
            self._starts.append(len(self._frames))
        return self._numbers[call.frames]

    @property
    def is_full(self) -> bool:
        """Whether some were left out."""
        return len(self._numbers) == _MOST_STACKS

    def columns(self, columns: Columns) -> dict[str, int]:
        table = np.array(self._frames, np.int64).reshape(-1, 4)
        parts = [*(table[:, i] for i in range(4)), np.array(self._starts, np.int64)]
        return {name: columns.add(part) for name, part in zip(self.COLUMNS, parts, strict=True)}
