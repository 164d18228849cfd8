"""A rank's collective calls, each once: the recording's mark and the flight record's entry of one
call laid over each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from vramlens.trace.flight import Collective
from vramlens.units import counted
from vramlens.view.timeline.marked_regions import LONGEST_US, Region

STATES = ("", "completed", "started", "scheduled", "unknown", "not returned")
"""What is known of a call: nothing more than that it returned; the flight record's words; or not
even that.
"""
_LATER_US = 60_000_000
"""Calls after the last event are still of this run where they follow within a minute: a hang
allocates nothing.
"""
_ENTERED_US = 1_000_000
"""Within a second of a mark's beginning its call is in the flight record, however long it takes
to return.
"""
_ITEM_BYTES = {
    1: (
        "Bool Byte Char Float8_e4m3fn Float8_e4m3fnuz Float8_e5m2 Float8_e5m2fnuz Float8_e8m0fnu"
        " UInt8 QInt8 QUInt8"
    ),
    2: "Short Half BFloat16 UInt16",
    4: "Int Float UInt32 ComplexHalf QInt32",
    8: "Long Double UInt64 ComplexFloat",
    16: "ComplexDouble",
}
_BYTES_OF = {name: size for size, names in _ITEM_BYTES.items() for name in names.split()}
"""Bytes of an element, by the type's name in PyTorch (c10/core/ScalarType.h)."""


@dataclass(frozen=True, slots=True)
class JoinedCall:
    """One row: what the recording's mark and the flight record know of a call; either may be
    None.
    """

    at_us: int
    mark: Region | None
    flight: Collective | None

    @property
    def name(self) -> str:
        """The collective."""
        if self.flight is not None:
            return self.flight.name
        return _plain(self.mark.name) if self.mark is not None else ""

    @property
    def took(self) -> int:
        """Microseconds until it returned, plus one; 0 where unknown."""
        mark = self.mark
        if mark is None or mark.end_us is None:
            return 0
        return min(mark.end_us - mark.begin_us, LONGEST_US) + 1

    @property
    def finished(self) -> int:
        """Microseconds until it was noticed to be finished, plus one; 0 where unknown."""
        entry = self.flight
        done = 0 if entry is None or entry.completed_ns is None else entry.completed_ns // 1000
        return max(done - self.at_us, 0) + 1 if done else 0

    @property
    def state(self) -> int:
        """A place in STATES."""
        if self.flight is not None:
            state = self.flight.state
            return STATES.index(state if state in STATES[1:4] else "unknown")
        has_not_returned = self.mark is not None and self.mark.end_us is None
        return STATES.index("not returned") if has_not_returned else 0


def joined(marks: Sequence[Region], flights: Sequence[Collective]) -> list[JoinedCall]:
    """Each call once: a flight record's entry and the mark of its name that it lies in are of
    one call.
    """
    by_name: dict[str, list[Region]] = {}
    for mark in marks:
        by_name.setdefault(_plain(mark.name), []).append(mark)
    # By name, so that each mark is passed once: what is left are the calls without a record.
    waiting = {name: deque(of_name) for name, of_name in by_name.items()}
    taken: set[int] = set()
    calls = []
    timed = [entry for entry in flights if entry.created_ns]
    for entry in sorted(timed, key=_created_us):
        candidates = waiting.get(entry.name, deque())
        mark_of_entry = _mark_at(candidates, _created_us(entry))
        if mark_of_entry is None:
            calls.append(JoinedCall(_created_us(entry), None, entry))
        else:
            taken.add(id(mark_of_entry))
            calls.append(JoinedCall(mark_of_entry.begin_us, mark_of_entry, entry))
    calls += [JoinedCall(mark.begin_us, mark, None) for mark in marks if id(mark) not in taken]
    return sorted(calls, key=lambda call: call.at_us)


def _created_us(entry: Collective) -> int:
    return (entry.created_ns or 0) // 1000


def _mark_at(candidates: deque[Region], at_us: int) -> Region | None:
    """The first mark that reaches to a time, taken from its candidates; those before it are
    dropped. None where it begins later.
    """
    while candidates and _end(candidates[0]) < at_us:
        candidates.popleft()
    if candidates and candidates[0].begin_us <= at_us:
        return candidates.popleft()
    return None


def _end(mark: Region) -> int:
    """Until when a call can have begun that a mark is of."""
    return mark.begin_us + _ENTERED_US if mark.end_us is None else mark.end_us


def within(
    calls: Sequence[JoinedCall], start_us: int, last_us: int
) -> tuple[list[JoinedCall], list[str]]:
    """The calls of the recording's time, and in words how many are not."""
    inside = [call for call in calls if start_us <= call.at_us <= start_us + last_us + _LATER_US]
    early = sum(call.at_us < start_us for call in calls)
    late = len(calls) - len(inside) - early
    if calls and not inside:
        when = "before" if early else "after"
        note = (
            f"All of the flight record's calls were made {when} this recording:"
            " is it of another run?"
        )
        return inside, [note]
    parts = []
    if early:
        parts.append(f"{early:,} before it began")
    if late:
        parts.append(f"{late:,} after it ended")
    if not parts:
        return inside, []
    return inside, [f"Not drawn: {counted(early + late, 'call')}, {' and '.join(parts)}."]


def _plain(name: str) -> str:
    return name.partition(":")[2]


def input_bytes(entry: Collective | None) -> int:
    """Bytes of the input plus one; 0 where an element's type is not known."""
    if entry is None or not entry.input_sizes or len(entry.dtypes) < len(entry.input_sizes):
        return 0
    item_sizes = [_BYTES_OF.get(dtype, 0) for dtype in entry.dtypes[: len(entry.input_sizes)]]
    if not all(item_sizes):
        return 0
    tensors = zip(entry.input_sizes, item_sizes, strict=True)
    total = sum(prod(shape) * size for shape, size in tensors)
    return total + 1 if total < 1 << 52 else 0
