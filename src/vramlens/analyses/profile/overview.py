"""Overview of a profiler trace: how long it is, how busy each device was, and what the CPU did
while it was not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Place
from vramlens.analyses.profile.nesting import Nesting
from vramlens.analyses.profile.operators import DeviceWork
from vramlens.analyses.profile.user_lines import Lines
from vramlens.trace.profile import DEVICE_KINDS, NONE, Kind, ProfilerTrace

LONGEST_GAPS = 10
EXAMINED_GAPS = 1000
"""Of so many, the longest, what the CPU did is looked at: the others are a few microseconds
each.
"""
_STEP = "ProfilerStep#"
_TRIED_THREADS = 8


@dataclass(frozen=True, slots=True)
class ProfilerStep:
    """One step: its number as the profiler names it, and when it began and ended."""

    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class CpuActivity:
    """What one thread did during a time, innermost spans by name; name is None while none of
    them ran.
    """

    name: str | None
    kind: str | None
    ns: int


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which a device had nothing to do.

    Attributes:
        start_ns, end_ns: when.
        where: "before" the device's first work, "after" its last, or "between".
        cpu: what the thread did that launched the next work (after the last: that launched it), the
            most time first; where that one did next to nothing, the busiest of the threads that
            launch.
        place: the user's innermost function of that thread in the middle of the gap; None where
            unknown.
    """

    start_ns: int
    end_ns: int
    where: str
    cpu: tuple[CpuActivity, ...]
    place: Place | None

    @property
    def ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class DeviceActivity:
    """How busy a device was within the trace's wall time.

    Attributes:
        device: its number.
        busy_ns: at least one kernel, copy or fill ran.
        idle_ns: none did.
        gaps: how many such times there are.
        longest: the longest of them.
        cpu_while_idle: what the CPU did in the EXAMINED_GAPS longest together.
        examined_ns: how long those are.
    """

    device: int
    busy_ns: int
    idle_ns: int
    gaps: int
    longest: tuple[Gap, ...]
    cpu_while_idle: tuple[CpuActivity, ...]
    examined_ns: int


def wall_of(trace: ProfilerTrace) -> tuple[int, int]:
    """The first and the last moment at which something is known to have run.

    Regions count only while the profiler was on: one that was entered before begins before.
    """
    spans, memory = trace.spans, trace.memory
    is_timed = spans.kind != Kind.REGION
    starts = [*_least(spans.start_ns[is_timed]), *_least(memory.time_ns)]
    ends = [*_most(spans.end_ns[is_timed]), *_most(memory.time_ns)]
    region_starts, region_ends = spans.start_ns[~is_timed], spans.end_ns[~is_timed]
    if trace.window_ns is not None:
        region_starts, region_ends = (
            np.clip(region_starts, *trace.window_ns),
            np.clip(region_ends, *trace.window_ns),
        )
    starts += _least(region_starts)
    ends += _most(region_ends)
    return (min(starts), max(ends)) if starts else (0, 0)


def _least(values: NDArray[np.int64]) -> list[int]:
    return [int(values.min())] if len(values) else []


def _most(values: NDArray[np.int64]) -> list[int]:
    return [int(values.max())] if len(values) else []


def steps_of_profile(trace: ProfilerTrace) -> tuple[ProfilerStep, ...]:
    """The profiler's steps, in order."""
    spans = trace.spans
    numbers = {
        number: int(name.removeprefix(_STEP))
        for number, name in enumerate(trace.names)
        if name.startswith(_STEP) and name.removeprefix(_STEP)[:18].isdecimal() and len(name) < 32
    }
    rows = np.flatnonzero((spans.kind == Kind.REGION) & np.isin(spans.name, list(numbers)))
    step_rows = [
        ProfilerStep(numbers[name], start, end)
        for name, start, end in zip(
            *(column[rows].tolist() for column in (spans.name, spans.start_ns, spans.end_ns)),
            strict=True,
        )
    ]
    return tuple(sorted(step_rows, key=lambda step: (step.start_ns, step.number)))


def busy_pieces(
    start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The times during which at least one of these ran: beginnings and ends that do not touch.

    Args:
        start_ns: in ascending order.
    """
    if not len(start_ns):
        return start_ns, end_ns
    latest = np.maximum.accumulate(end_ns)
    new = np.flatnonzero(start_ns[1:] > latest[:-1]) + 1
    return start_ns[np.append(0, new)], latest[np.append(new - 1, len(latest) - 1)]


def device_numbers(trace: ProfilerTrace) -> tuple[int, ...]:
    """The devices on which something ran."""
    return tuple(np.unique(trace.spans.device[trace.spans.of(DEVICE_KINDS)]).tolist())


def device_use(
    trace: ProfilerTrace,
    cpu: Nesting,
    lines: Lines,
    work: DeviceWork,
    device: int,
    wall: tuple[int, int],
) -> DeviceActivity:
    """How busy a device was, and what the CPU did while it was not."""
    spans = trace.spans
    device_rows = np.flatnonzero(spans.device[work.rows] == device)
    rows = work.rows[device_rows]
    start, end = busy_pieces(spans.start_ns[rows], spans.end_ns[rows])
    threads = np.where(work.launch[device_rows] >= 0, spans.thread[work.launch[device_rows]], NONE)
    launching = [
        thread
        for thread, _ in Counter(threads.tolist()).most_common(_TRIED_THREADS + 1)
        if thread != NONE
    ]
    gap_start, gap_end = np.append(wall[0], end), np.append(start, wall[1])
    real = np.flatnonzero(gap_end > gap_start)
    # The work that ends a gap, or for the last one the last of all.
    next_work = np.minimum(np.searchsorted(spans.start_ns[rows], gap_end), len(rows) - 1)
    longest, in_all, examined = [], _Activities(trace), 0
    order = real[np.lexsort((gap_start[real], gap_start[real] - gap_end[real]))][:EXAMINED_GAPS]
    for rank, number in enumerate(order.tolist()):
        begin, finish, thread = (
            int(gap_start[number]),
            int(gap_end[number]),
            int(threads[next_work[number]]),
        )
        thread, pieces = _telling(cpu, thread, launching, begin, finish)
        in_all.add(*pieces, finish - begin)
        examined += finish - begin
        if rank < LONGEST_GAPS:
            activities = _Activities(trace)
            activities.add(*pieces, finish - begin)
            where = (
                "before" if number == 0 else "after" if number == len(gap_start) - 1 else "between"
            )
            middle = np.array([(begin + finish) // 2], np.int64)
            place = lines.place(int(lines.at(np.array([thread], np.int64), middle)[0]))
            longest.append(
                Gap(start_ns=begin, end_ns=finish, where=where, cpu=activities.rows(), place=place)
            )
    busy = int((end - start).sum())
    idle = int((gap_end[real] - gap_start[real]).sum())
    return DeviceActivity(
        device=device,
        busy_ns=busy,
        idle_ns=idle,
        gaps=len(real),
        longest=tuple(longest),
        cpu_while_idle=in_all.rows(),
        examined_ns=examined,
    )


_Pieces = tuple[NDArray[np.int64], NDArray[np.int64]]


def _telling(
    cpu: Nesting, thread: int, other_threads: Sequence[int], start_ns: int, end_ns: int
) -> tuple[int, _Pieces]:
    """The thread that says what the CPU did, and its pieces of a time."""
    pieces = cpu.within(thread, start_ns, end_ns)
    if 2 * _known(pieces) >= end_ns - start_ns:
        return thread, pieces
    tried = [
        (thread, pieces),
        *((other, cpu.within(other, start_ns, end_ns)) for other in other_threads),
    ]
    return max(tried, key=lambda candidate: _known(candidate[1]))


def _known(pieces: _Pieces) -> int:
    rows, lasted = pieces
    return int(lasted[rows >= 0].sum())


_KIND_NAMES = {Kind.OPERATOR: "operator", Kind.REGION: "region", Kind.RUNTIME: "runtime"}


class _Activities:
    """Sums what threads did."""

    def __init__(self, trace: ProfilerTrace) -> None:
        self._trace = trace
        self._sums: dict[tuple[int, int], int] = {}

    def add(self, rows: NDArray[np.int64], lasted: NDArray[np.int64], all_ns: int) -> None:
        """Adds pieces of a time; what none of them fills counts as nothing known."""
        spans, busy_ns = self._trace.spans, 0
        for row, ns in zip(rows.tolist(), lasted.tolist(), strict=True):
            if row >= 0 and ns:
                key = int(spans.name[row]), int(spans.kind[row])
                self._sums[key] = self._sums.get(key, 0) + ns
                busy_ns += ns
        if all_ns > busy_ns:
            self._sums[NONE, NONE] = self._sums.get((NONE, NONE), 0) + all_ns - busy_ns

    def rows(self) -> tuple[CpuActivity, ...]:
        """By name, the longest first."""
        activity_rows = [
            CpuActivity(None, None, ns)
            if kind == NONE
            else CpuActivity(self._trace.names[name], _KIND_NAMES[Kind(kind)], ns)
            for (name, kind), ns in self._sums.items()
        ]
        return tuple(sorted(activity_rows, key=lambda row: (-row.ns, row.name or "")))


def steps_at(time_ns: NDArray[np.int64], steps: Sequence[ProfilerStep]) -> NDArray[np.int64]:
    """The index of the step that each moment lies in; NONE."""
    if not steps:
        return np.full(len(time_ns), NONE, np.int64)
    starts = np.array([step.start_ns for step in steps], np.int64)
    ends = np.array([step.end_ns for step in steps], np.int64)
    index = np.searchsorted(starts, time_ns, side="right") - 1
    return np.where((index >= 0) & (time_ns <= ends[index]), index, NONE)
