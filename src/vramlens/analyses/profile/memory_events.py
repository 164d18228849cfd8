"""Memory of a profiler trace: the peak of one device, who held it, the timeline, and what was
never given back.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Place
from vramlens.analyses.profile.lifetimes import CATEGORIES, Lifetimes, lifetimes_of
from vramlens.analyses.profile.nesting import Nesting
from vramlens.analyses.profile.overview import ProfilerStep, steps_at
from vramlens.analyses.profile.user_lines import Lines
from vramlens.trace.profile import NONE, ProfilerTrace

BEFORE = "before_trace"
TIMELINE_POINTS = 100
_OPERATORS_IN_TIMELINE = 8
_OTHER_OPERATORS = "other operators"
NO_OPERATOR = "(no operator)"


@dataclass(frozen=True, slots=True)
class Holder:
    """Allocations that one operator asked for on behalf of one function of the user's.

    Attributes:
        operator: its name; NO_OPERATOR where none ran.
        place: the user's function, by the line that it begins at; None where the trace does not
            tell.
        inferred: whether the operator is a backward one and the function that which ran its
            forward.
        category: what most of the bytes likely are; None where the trace does not tell.
        bytes, allocations: how much and how many.
        steps: in how many of the profiler's steps they were asked for.
    """

    operator: str
    place: Place | None
    inferred: bool
    category: str | None
    bytes: int
    allocations: int
    steps: int


@dataclass(frozen=True, slots=True)
class AllocatedMoment:
    """Allocated bytes at a time, and those of each group."""

    time_ns: int
    bytes: int
    groups: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request that the allocator could not fulfil."""

    time_ns: int
    bytes: int
    operator: str
    place: Place | None


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The memory of one device.

    Attributes:
        device: its name, as PyTorch writes it.
        events: how many memory events there are.
        allocated_bytes, reserved_bytes: each counter's own maximum; reserved is None where it is
            not counted.
        exact: whether allocated is the allocator's own sum; else it counts from the trace's
            beginning, a lower bound. Of the CPU it always is: PyTorch counts that only while it
                profiles (c10/core/CPUAllocator.cpp).
        peak_ns, peak_step: when allocated bytes first reach their maximum, and the profiler's step.
        at_peak: who held it, the most bytes first.
        before_bytes: held at the peak since before the trace began.
        by_group: bytes at the peak by category, or by operator.
        grouped_by: "category" (likely: by where memory was asked for and given back) or "operator".
        timeline: the highest moment of each of TIMELINE_POINTS equal parts of the trace, in order.
        step_peaks: the maximum within each of the profiler's steps.
        kept: never given back before the trace's end.
        paired: whether the trace names addresses; without them nobody holds anything.
        failed: requests that failed.
    """

    device: str
    is_cpu: bool
    events: int
    allocated_bytes: int
    reserved_bytes: int | None
    exact: bool
    peak_ns: int
    peak_step: int | None
    at_peak: tuple[Holder, ...]
    before_bytes: int
    by_group: Mapping[str, int]
    grouped_by: str
    timeline: tuple[AllocatedMoment, ...]
    step_peaks: tuple[int, ...]
    kept: tuple[Holder, ...]
    paired: bool
    failed: tuple[FailedRequest, ...]


def memory_of(
    trace: ProfilerTrace, cpu: Nesting, lines: Lines, steps: Sequence[ProfilerStep], device: int
) -> MemoryReport | None:
    """The memory of one device (an index into ``trace.memory_devices``); None where nothing was
    asked for.
    """
    memory = trace.memory
    lives = lifetimes_of(trace, cpu, lines, device)
    events = lives.events
    failed = _failed(trace, cpu, lines, device)
    if not len(events):
        return None
    curve, exact = _curve(trace, lives)
    peak = int(np.argmax(curve))
    alive = lives.alive_at(peak) if lives.paired else np.zeros(0, np.int64)
    time_ns = memory.time_ns[events]
    holders = _Holders(trace, lines, lives, steps_at(time_ns[lives.born], steps))
    at_peak = holders.of(alive)
    groups, grouped_by = _groups(trace, lives, at_peak)
    reserved = memory.reserved[events]
    before = max(0, int(curve[peak]) - int(lives.size[alive].sum()))
    curves = _group_curves(lives, groups, curve)
    peak_step = int(steps_at(time_ns[peak : peak + 1], steps)[0])
    return MemoryReport(
        device=str(trace.memory_devices[device]),
        is_cpu=trace.memory_devices[device].is_cpu,
        events=len(events),
        allocated_bytes=int(curve[peak]),
        reserved_bytes=int(reserved.max()) if (reserved > 0).any() else None,
        exact=exact and not trace.memory_devices[device].is_cpu,
        peak_ns=int(time_ns[peak]),
        peak_step=steps[peak_step].number if peak_step >= 0 else None,
        at_peak=at_peak,
        before_bytes=before if lives.paired else 0,
        by_group=_largest_first({name: int(values[peak]) for name, values in curves.items()}),
        grouped_by=grouped_by,
        timeline=_timeline(_sampled(time_ns, curve), time_ns, curve, curves),
        step_peaks=_step_peaks(time_ns, curve, steps),
        kept=holders.of(np.flatnonzero(lives.died == NONE)) if lives.paired else (),
        paired=lives.paired,
        failed=failed,
    )


def _largest_first(bytes_by_group: Mapping[str, int]) -> dict[str, int]:
    groups = ((name, size) for name, size in bytes_by_group.items() if size)
    return dict(sorted(groups, key=lambda group: -group[1]))


def _timeline(
    sampled: Sequence[int],
    time_ns: NDArray[np.int64],
    curve: NDArray[np.int64],
    curves: Mapping[str, NDArray[np.int64]],
) -> tuple[AllocatedMoment, ...]:
    return tuple(
        AllocatedMoment(
            int(time_ns[i]),
            int(curve[i]),
            {name: int(values[i]) for name, values in curves.items()},
        )
        for i in sampled
    )


def _curve(trace: ProfilerTrace, lives: Lifetimes) -> tuple[NDArray[np.int64], bool]:
    """Allocated bytes after each event, and whether they are the allocator's own."""
    counted_bytes = trace.memory.allocated[lives.events]
    if (counted_bytes >= 0).all() and (counted_bytes > 0).any():
        return counted_bytes, True
    summed = np.cumsum(trace.memory.size[lives.events])
    return summed + max(lives.earlier_bytes, -int(summed.min()), 0), False


def _step_peaks(
    time_ns: NDArray[np.int64], curve: NDArray[np.int64], steps: Sequence[ProfilerStep]
) -> tuple[int, ...]:
    peaks = []
    ends = [min(step.end_ns + 1, after.start_ns) for step, after in itertools.pairwise(steps)]
    for step, end in zip(steps, [*ends, steps[-1].end_ns + 1] if steps else [], strict=True):
        first, last = np.searchsorted(time_ns, (step.start_ns, end)).tolist()
        inside = curve[
            max(first - 1, 0) : last
        ]  # the event before says what was held when the step began
        peaks.append(int(inside.max()) if len(inside) else 0)
    return tuple(peaks)


def _sampled(time_ns: NDArray[np.int64], curve: NDArray[np.int64]) -> list[int]:
    """The highest event of each part of the time."""
    span = max(1, int(time_ns[-1] - time_ns[0]) + 1)
    part = (time_ns - time_ns[0]).astype(np.float64) * TIMELINE_POINTS // span
    order = np.lexsort((-curve, part))
    _, first = np.unique(part[order], return_index=True)
    return [int(index) for index in order[first]]


def _groups(
    trace: ProfilerTrace, lives: Lifetimes, at_peak: Sequence[Holder]
) -> tuple[dict[str, NDArray[np.bool_]], str]:
    """Which allocations are of which group, and what the groups are."""
    if lives.has_categories:
        return {
            name: lives.category == number for number, name in enumerate(CATEGORIES)
        }, "category"
    sums: dict[str, int] = {}
    for holder in at_peak:
        sums[holder.operator] = sums.get(holder.operator, 0) + holder.bytes
    chosen = sorted(sums, key=lambda name: -sums[name])[:_OPERATORS_IN_TIMELINE]
    names = _operator_names(trace, lives.operator)
    groups = {name: np.array([other == name for other in names], np.bool_) for name in chosen}
    is_other = (
        ~np.logical_or.reduce(list(groups.values())) if groups else np.ones(len(names), np.bool_)
    )
    return {**groups, _OTHER_OPERATORS: is_other}, "operator"


def _group_curves(
    lives: Lifetimes, groups: Mapping[str, NDArray[np.bool_]], curve: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """Bytes of each group after each event, and of what was there before the trace."""
    if not lives.paired:
        return {}
    curves = {}
    for name, is_in_group in groups.items():
        change = np.zeros(len(lives.events), np.int64)
        change[lives.born[is_in_group]] += lives.size[is_in_group]
        gone = is_in_group & (lives.died >= 0)
        np.subtract.at(change, lives.died[gone], lives.size[gone])
        curves[name] = np.cumsum(change)
    return {**curves, BEFORE: np.maximum(curve - sum(curves.values()), 0)}


def _operator_names(trace: ProfilerTrace, rows: NDArray[np.int64]) -> list[str]:
    names = trace.names
    return [
        names[name] if row >= 0 else NO_OPERATOR
        for row, name in zip(rows, _names(trace, rows), strict=True)
    ]


def _names(trace: ProfilerTrace, rows: NDArray[np.int64]) -> list[int]:
    names_of_rows = trace.spans.name[rows] if len(trace.spans) else np.zeros(len(rows), np.int64)
    return [int(name) for name in names_of_rows]


def _failed(
    trace: ProfilerTrace, cpu: Nesting, lines: Lines, device: int
) -> tuple[FailedRequest, ...]:
    memory = trace.memory
    rows = np.flatnonzero((memory.device == device) & memory.failed)
    threads, times = memory.thread[rows], memory.time_ns[rows]
    running = _operator_names(trace, cpu.innermost(threads, times))
    users = lines.at(threads, times).tolist()
    return tuple(
        FailedRequest(time, abs(size), operator, lines.place(user))
        for time, size, operator, user in zip(
            times.tolist(), memory.size[rows].tolist(), running, users, strict=True
        )
    )


class _Holders:
    """Groups allocations by the operator and the user's function."""

    def __init__(
        self, trace: ProfilerTrace, lines: Lines, lives: Lifetimes, step: NDArray[np.int64]
    ) -> None:
        self._lives = lives
        self._step = step
        places: dict[Place | None, int] = {}
        by_row = {
            row: places.setdefault(lines.place(row), len(places))
            for row in np.unique(lives.user).tolist()
        }
        self._places = list(places)
        operators: dict[str, int] = {}
        self._operator = np.array(
            [
                operators.setdefault(name, len(operators))
                for name in _operator_names(trace, lives.operator)
            ],
            np.int64,
        )
        self._operators = list(operators)
        self._place = np.array([by_row[row] for row in lives.user.tolist()], np.int64)

    def of(self, rows: NDArray[np.int64]) -> tuple[Holder, ...]:
        """The holders of these allocations, the most bytes first."""
        lives = self._lives
        if not len(rows):
            return ()
        width = max(len(self._places), 1)
        keys = (self._operator[rows] * width + self._place[rows]) * 2 + lives.inferred[rows]
        distinct_keys, group = np.unique(keys, return_inverse=True)
        group = group.reshape(-1)
        sizes = np.zeros((len(distinct_keys), len(CATEGORIES)), np.int64)
        np.add.at(sizes, (group, lives.category[rows]), lives.size[rows])
        counts = np.bincount(group).tolist()
        pairs = np.unique(np.stack((group, self._step[rows])), axis=1)
        in_steps = np.bincount(pairs[0][pairs[1] >= 0], minlength=len(distinct_keys)).tolist()
        holders = [
            Holder(
                operator=self._operators[key // 2 // width],
                place=self._places[key // 2 % width],
                inferred=bool(key % 2),
                category=CATEGORIES[int(np.argmax(sizes[n]))] if lives.has_categories else None,
                bytes=int(sizes[n].sum()),
                allocations=counts[n],
                steps=in_steps[n],
            )
            for n, key in enumerate(distinct_keys.tolist())
        ]
        return tuple(
            sorted(holders, key=lambda holder: (-holder.bytes, holder.operator, str(holder.place)))
        )
