"""Steps: where one ends and the next begins, and what says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vramlens.trace import BEFORE, NO_STACK, Action, DeviceTrace, Stacks, Trace

OPTIMIZER_FRAME = re.compile(r"[/\\]optim(?:izers?)?[/\\][^:]*\.py:(?!zero_grad)")
# What an optimizer calls back into: Lightning runs the whole step inside of it, LBFGS the forward
# and backward pass.
CALLED_BACK = re.compile(
    r"torch[/\\]nn[/\\]modules[/\\]module\.py:_call_impl$|_tensor\.py:backward$|:\w*closure\w*$"
)
PATTERN = "repeating pattern"
"""Of all that can tell steps apart (``Steps.source``) the one that may be wrong about what a
step is.
"""
_FEWEST_CYCLES = 3


def optimizer_stacks(stacks: Stacks) -> NDArray[np.bool_]:
    """One flag a stack: whether an optimizer asked, and not what it called back into."""
    optimizer = stacks.mark_frames(OPTIMIZER_FRAME)
    first = stacks.first_frame(optimizer | stacks.mark_frames(CALLED_BACK))
    flags: NDArray[np.bool_] = first >= 0
    flags[flags] = optimizer[first[flags]]
    return flags


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of one device.

    Attributes:
        starts: the event that each step begins with; the first is event 0. Step i ends where step i
            + 1 begins.
        ends: the event after the last one of each step.
        source: "profiler steps", "vramlens.step", "optimizer marks", "optimizer frames", "repeating pattern"; None
            without steps.
    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    source: str | None

    def __len__(self) -> int:
        return len(self.starts)

    def starts_until(self, event: int) -> NDArray[np.int64]:
        """The events that the steps begin with which have begun when an event comes, itself one of them."""
        return self.starts[self.starts <= event]

    def of(self, events: NDArray[np.int64]) -> NDArray[np.int64]:
        """The step of each event: BEFORE for those before the recording, the last step for those
        after it.
        """
        if not len(self):
            return np.full(len(events), BEFORE, np.int64)
        table = self._step_of_event
        step = table[np.clip(events, 0, len(table) - 1)].astype(np.int64)
        step[events < 0] = BEFORE
        return step

    @cached_property
    def _step_of_event(self) -> NDArray[np.int32]:
        """The step of every event: asked for so often that a search each time would cost more."""
        return np.repeat(np.arange(len(self), dtype=np.int32), self.ends - self.starts)


def steps_of(trace: Trace, device: DeviceTrace) -> Steps:
    """The steps of a device, from the best evidence that the recording holds."""
    events = len(device.events)
    sources: tuple[tuple[str, Callable[[], NDArray[np.int64]]], ...] = (
        ("vramlens.step", lambda: _marks(trace, device, "vramlens.step")),
        ("optimizer marks", lambda: _optimizer_marks(trace, device)),
        ("optimizer frames", lambda: _optimizer_frames(trace, device)),
        (PATTERN, lambda: _pattern(device)),
    )
    if trace.is_profiler_trace:
        profiler_steps = ("profiler steps", lambda: _marks(trace, device, "ProfilerStep#"))
        sources = (profiler_steps, *sources)
    for source, find in sources:
        boundaries = find()
        if source == "optimizer frames" and len(boundaries) == 1:
            repeated = _steps_like_the_first(device, int(boundaries[0]))
            if len(repeated) > 1:
                source, boundaries = PATTERN, repeated
        if len(boundaries):
            starts = np.unique(np.concatenate(([0], boundaries)))
            starts = _drop_tail(device, starts[starts < events])
            if source.startswith("optimizer"):
                starts = _join_turns(device, starts)
            return Steps(starts, np.append(starts[1:], events), source)
    return Steps(np.zeros(0, np.int64), np.zeros(0, np.int64), None)


def _marks(trace: Trace, device: DeviceTrace, prefix: str) -> NDArray[np.int64]:
    """The first event after the end of each region whose name begins with ``prefix``."""
    ends = mark_ends_us(trace, device, (prefix,)) if len(device.events) else np.zeros(0, np.int64)
    return np.searchsorted(device.clock_us, ends, side="right")


def mark_ends_us(trace: Trace, device: DeviceTrace, prefixes: tuple[str, ...]) -> NDArray[np.int64]:
    """When the regions end on a device whose names begin with one of the prefixes."""
    notes, strings = trace.annotations, trace.stacks.strings
    marks = [name for name in np.unique(notes.name).tolist() if strings[name].startswith(prefixes)]
    is_end = np.isin(notes.name, marks) & ~notes.starts
    return notes.time_us[is_end & np.isin(notes.device, (device.device, -1))]


def _optimizer_marks(trace: Trace, device: DeviceTrace) -> NDArray[np.int64]:
    ends = _marks(trace, device, "Optimizer.step#")
    if not len(ends):
        return ends
    # A zero_grad right behind belongs to the step it clears up after; steps with no new memory
    # between them are several optimizers of one step.
    cleared = _marks(trace, device, "Optimizer.zero_grad#")
    births = np.flatnonzero(device.events.action == Action.ALLOC)
    following = np.searchsorted(births, ends)
    next_birth = np.append(births, len(device.events))[following]
    if len(cleared):
        place = np.minimum(np.searchsorted(cleared, next_birth, side="right") - 1, len(cleared) - 1)
        ends = np.where((place >= 0) & (cleared[place] > ends), cleared[place], ends)
    inside = _optimizer_births(trace, device)
    is_outside = np.ones(len(device.events), np.bool_)
    is_outside[inside] = False
    outside = births[is_outside[births]]
    group = np.searchsorted(outside, ends)
    last_of_group = np.append(group[1:] != group[:-1], True)
    return np.asarray(ends[last_of_group])


def _optimizer_births(trace: Trace, device: DeviceTrace) -> NDArray[np.int64]:
    """The events that allocate from inside an optimizer."""
    stacks = optimizer_stacks(trace.stacks)
    events = device.events
    places = np.flatnonzero((events.action == Action.ALLOC) & (events.stack != NO_STACK))
    return places[stacks[events.stack[places]]]


def _optimizer_frames(trace: Trace, device: DeviceTrace) -> NDArray[np.int64]:
    """Where a run of allocations from inside an optimizer ends."""
    births = np.flatnonzero(device.events.action == Action.ALLOC)
    inside = np.isin(births, _optimizer_births(trace, device))
    if not inside.any():
        return np.zeros(0, np.int64)
    last = np.flatnonzero(inside[:-1] & ~inside[1:])
    return births[last + 1]


def _pattern(device: DeviceTrace) -> NDArray[np.int64]:
    """The events at which a repeating sequence of allocations begins anew."""
    return _cycles(device)[1]


def _cycles(device: DeviceTrace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The events that come once in each cycle of a repeating sequence of allocations, and those at
    which each cycle after the first begins.

    The rarest stack (size, where there are no stacks) that comes at even distances counts the
    cycles; a cycle begins
    as the first one did: with the earliest stack that every cycle has.
    """
    births = np.flatnonzero(device.events.action == Action.ALLOC)
    keys = device.events.stack[births].astype(np.int64)
    if not (keys != NO_STACK).any():
        keys = device.events.size[births].astype(np.int64)
    kinds, first, kind_of_birth, counts = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True
    )
    counts[kinds == NO_STACK] = 0
    for kind in np.argsort(counts, kind="stable"):
        if counts[kind] < _FEWEST_CYCLES:
            continue
        anchors = np.flatnonzero(kind_of_birth == kind)
        gaps = np.diff(anchors)
        usual = np.median(gaps)
        even = (np.abs(gaps - usual) <= usual / 2).mean()
        if usual >= 2 and even >= 0.8 and anchors[-1] - anchors[0] >= 0.3 * len(births):
            return births[anchors], births[_cycle_starts(kind_of_birth, first, anchors)]
    return np.zeros(0, np.int64), np.zeros(0, np.int64)


def _steps_like_the_first(device: DeviceTrace, first_end: int) -> NDArray[np.int64]:
    """The events at which steps begin after the first, where an optimizer allocates in that one
    alone: its states, if it updates in place. A step is as many cycles of a repeating sequence as
    the first one is.

    Args:
        first_end: the event after the first step's optimizer.
    """
    anchors, starts = _cycles(device)
    cycles = int(np.searchsorted(anchors, first_end))
    if not cycles or not len(starts):
        return np.zeros(0, np.int64)
    # What a cycle begins with may come before the optimizer's last allocation.
    second = int(np.argmin(np.abs(starts - first_end)))
    return starts[second::cycles]


def _cycle_starts(
    which: NDArray[np.int64], first: NDArray[np.int64], anchors: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Where each cycle after the first begins, among the births; ``anchors`` come once a cycle."""
    cycles = len(anchors) - 1
    inside = np.arange(anchors[0], anchors[-1])
    cycle = np.searchsorted(anchors, inside, side="right") - 1
    pairs, times = np.unique(which[inside] * cycles + cycle, return_counts=True)
    in_cycles = np.bincount(pairs // cycles, minlength=len(first))
    every = np.flatnonzero(in_cycles >= 0.8 * cycles)
    every = every[np.argsort(first[every], kind="stable")]
    total = np.bincount(pairs // cycles, weights=times, minlength=len(first))
    # Of the earliest few, the one that comes least often a cycle marks the beginning most sharply.
    mark = min(every[:3].tolist(), key=lambda kind: (total[kind], first[kind]))
    lead = int(first[mark] - first[every[0]])
    marks = np.flatnonzero(which == mark)
    after = np.searchsorted(marks, anchors, side="right")
    return np.unique(marks[after[after < len(marks)]] - lead)


def _join_turns(device: DeviceTrace, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """One step of what several optimizers do in turns (a GAN's two): their stacks differ, and
    come again together.
    """
    events = device.events
    births = np.flatnonzero((events.action == Action.ALLOC) & (events.stack != NO_STACK))
    places = np.searchsorted(births, np.append(starts, len(events)))
    stack_sets = [set(events.stack[births[a:b]].tolist()) for a, b in pairwise(places)]
    common = set.intersection(*stack_sets) if stack_sets else set()
    if np.median([len(common) / max(len(stacks), 1) for stacks in stack_sets]) > 0.5:
        return starts  # what differs from step to step is the exception: one loop
    stack_sets = [stacks - common for stacks in stack_sets]

    def alike(distance: int) -> float:
        pairs = [(a, b) for a, b in zip(stack_sets, stack_sets[distance:], strict=False) if a and b]
        shares = [len(a & b) / min(len(a), len(b)) for a, b in pairs]
        return float(np.median(shares)) if shares else 1.0

    for turns in (2, 3):
        if len(stack_sets) >= 2 * turns and alike(1) < 0.1 and alike(turns) > 0.9:
            return starts[::turns]
    return starts


def _drop_tail(device: DeviceTrace, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Without the last start, when what follows it is only the end of the program and no step."""
    if len(starts) < 2:
        return starts
    events = device.events
    last, before = slice(int(starts[-1]), None), slice(int(starts[-2]), int(starts[-1]))
    births = events.action == Action.ALLOC
    if (events.action[last] == Action.OOM).any():
        return starts
    tail = np.unique(events.stack[last][births[last]])
    usual = np.unique(events.stack[before][births[before]])
    shared = np.isin(tail, usual).sum()
    return starts if shared * 2 >= max(len(usual), 1) else starts[:-1]
