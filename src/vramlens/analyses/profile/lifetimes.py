"""Lifetimes in a profiler trace: what was asked for and given back when, by which operator, and
what it likely was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.profile.nesting import Nesting, by_value
from vramlens.analyses.profile.user_lines import Lines
from vramlens.trace.profile import NONE, Kind, ProfilerTrace

CATEGORIES = ("activations", "gradients", "optimizer_state", "temporaries", "other")
_ACTIVATIONS, _GRADIENTS, _OPTIMIZER_STATE, _TEMPORARY, _OTHER = range(len(CATEGORIES))

_BACKWARD = "autograd::engine::evaluate_function"
_OPTIMIZER = "Optimizer.step#"
# Operators that only get memory for the one around them.
_HELPERS = frozenset(
    f"aten::{name}"
    for name in (
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "set_",
    )
)


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """The memory of one device, one row an allocation within the trace, in order of time.

    Attributes:
        events: rows of ``MemoryEvents`` of this device that are not failed requests.
        born, died: indices into ``events``; died is NONE where it was not given back before the
            trace's end.
        size: bytes.
        operator: row of ``Spans`` of the operator (else the region or call) that was running; NONE.
        user: row of ``Spans`` of the user's function; NONE.
        inferred: whether that function is the one whose backward was running.
        category: index into CATEGORIES; all "other" where the trace shows neither a backward nor an
            optimizer.
        has_categories: whether it shows one.
        phase: of PHASES, in which it was asked for.
        earlier_bytes: given back in the trace but asked for before it.
        paired: whether the trace names addresses, without which nothing is known but the events.
    """

    events: NDArray[np.int64]
    born: NDArray[np.int64]
    died: NDArray[np.int64]
    size: NDArray[np.int64]
    operator: NDArray[np.int64]
    user: NDArray[np.int64]
    inferred: NDArray[np.bool_]
    category: NDArray[np.int64]
    has_categories: bool
    phase: NDArray[np.int64]
    earlier_bytes: int
    paired: bool

    def alive_at(self, event: int) -> NDArray[np.int64]:
        """The allocations that are alive after an event (an index into ``events``)."""
        return np.flatnonzero((self.born <= event) & ((self.died > event) | (self.died == NONE)))


def lifetimes_of(trace: ProfilerTrace, cpu: Nesting, lines: Lines, device: int) -> Lifetimes:
    """The lifetimes of the memory of one device (an index into ``trace.memory_devices``).

    An allocation is given back by the next event at its address; that another allocation follows
    there proves it too.
    """
    memory, spans = trace.memory, trace.spans
    events = np.flatnonzero((memory.device == device) & ~memory.failed & (memory.size != 0))
    size, address = memory.size[events], memory.address[events]
    paired = bool(len(events)) and bool((address != 0).all())
    order = np.argsort(address, kind="stable")
    # In that order: whether the one before is at the same address.
    follows = np.zeros(len(events), np.bool_)
    follows[1:] = paired & (address[order][1:] == address[order][:-1])
    died = np.full(len(events), NONE, np.int64)
    died[order[:-1][follows[1:]]] = order[1:][follows[1:]]
    is_alloc = size > 0
    # Whether an allocation is what lies at the address of each event.
    allocated_before = np.zeros(len(events), np.bool_)
    allocated_before[order[1:]] = follows[1:] & is_alloc[order[:-1]]
    earlier = int(-size[~is_alloc & ~allocated_before].sum()) if paired else 0
    born = np.flatnonzero(is_alloc)

    thread, time_ns = memory.thread[events], memory.time_ns[events]
    innermost = cpu.innermost(thread, time_ns)
    operator = _running(trace, cpu, innermost[born])
    user = lines.at(thread[born], time_ns[born])
    behind = lines.behind(innermost[born])
    inferred = (user == NONE) & (behind != NONE)
    phase, has_categories = _phases(trace, cpu, innermost, thread, time_ns)
    category = (
        _categories(phase, born, died[born])
        if has_categories and paired
        else np.full(len(born), _OTHER)
    )
    return Lifetimes(
        events=events,
        born=born,
        died=died[born],
        size=size[born],
        operator=operator,
        user=np.where(inferred, behind, user),
        inferred=inferred,
        category=category.astype(np.int64),
        has_categories=has_categories and paired and bool(len(spans)),
        phase=phase[born],
        earlier_bytes=earlier,
        paired=paired,
    )


def _running(trace: ProfilerTrace, cpu: Nesting, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The operator that was running where these were the innermost: not one that only gets
    memory for another.
    """
    spans = trace.spans
    helper = np.array([name in _HELPERS for name in trace.names], np.bool_)
    operators = cpu.above((spans.kind == Kind.OPERATOR) & ~helper[spans.name])
    if not len(operators):  # memory events and no spans
        return rows
    running = np.where(rows >= 0, operators[rows], NONE)
    return np.where(running >= 0, running, rows)


PHASES = ("elsewhere", "backward", "optimizer")
_ELSEWHERE, _IN_BACKWARD, _IN_OPTIMIZER = range(len(PHASES))


def _phases(
    trace: ProfilerTrace,
    cpu: Nesting,
    rows: NDArray[np.int64],
    thread: NDArray[np.int64],
    time_ns: NDArray[np.int64],
) -> tuple[NDArray[np.int64], bool]:
    """The phase of each moment, whose innermost row is given, and whether the trace shows a
    phase at all.
    """
    spans = trace.spans
    named_backward = np.array([name.startswith(_BACKWARD) for name in trace.names], np.bool_)
    named_optimizer = np.array([name.startswith(_OPTIMIZER) for name in trace.names], np.bool_)
    backward, optimizer = spans.backward | named_backward[spans.name], named_optimizer[spans.name]
    is_running, in_backward = rows >= 0, cpu.above(backward) >= 0
    phase = np.full(len(rows), _ELSEWHERE, np.int64)
    if not len(spans):
        return phase, False
    phase[is_running & (cpu.above(optimizer)[rows] >= 0)] = _IN_OPTIMIZER
    is_forward = (spans.kind == Kind.OPERATOR) & ~in_backward
    phase[(phase == _ELSEWHERE) & _between(trace, in_backward, is_forward, thread, time_ns)] = (
        _IN_BACKWARD
    )
    phase[is_running & in_backward[rows]] = _IN_BACKWARD
    return phase, bool(backward.any() or optimizer.any())


def _between(
    trace: ProfilerTrace,
    these: NDArray[np.bool_],
    others: NDArray[np.bool_],
    thread: NDArray[np.int64],
    time_ns: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Whether on its thread the span that began last before a moment, and the next one after it,
    are both of these.

    The engine gives back what a node no longer needs between the spans of two nodes.
    """
    spans = trace.spans
    is_between = np.zeros(len(time_ns), np.bool_)
    either_rows = np.flatnonzero(these | others)
    of_thread = {
        number: either_rows[places] for number, places in by_value(spans.thread[either_rows])
    }
    for number, rows_of_thread in by_value(thread):
        rows = of_thread.get(number, either_rows[:0])
        after = np.searchsorted(spans.start_ns[rows], time_ns[rows_of_thread], side="right")
        inside = (after > 0) & (after < len(rows))
        rows_before, rows_after = rows[after[inside] - 1], rows[after[inside]]
        is_between[rows_of_thread[inside]] = these[rows_before] & these[rows_after]
    return is_between


def _categories(
    phase: NDArray[np.int64], born: NDArray[np.int64], died: NDArray[np.int64]
) -> NDArray[np.int64]:
    """What each allocation likely is, by where it was asked for and where it was given back."""
    born_phase, back = phase[born], np.where(died >= 0, phase[died], NONE)
    category = np.full(len(born), _OTHER, np.int64)
    category[(born_phase == _ELSEWHERE) & (back == _IN_BACKWARD)] = _ACTIVATIONS
    category[(born_phase == _ELSEWHERE) & (back == _ELSEWHERE)] = _TEMPORARY
    category[(born_phase == _IN_BACKWARD) & (back != _IN_BACKWARD)] = _GRADIENTS
    category[(born_phase == _IN_OPTIMIZER) & (back != _IN_OPTIMIZER)] = _OPTIMIZER_STATE
    category[(born_phase != _ELSEWHERE) & (born_phase == back)] = _TEMPORARY
    return category
