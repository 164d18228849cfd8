"""Phases: which part of the training loop asked for each allocation, and for whom the backward pass
did.

PyTorch's autograd threads leave no Python frames, so what the backward pass allocates has no line
of its own. But a node of the graph gives up what it saved right after it has run: the next forward
allocation that is freed tells whose backward is under way (torch/csrc/autograd/engine.cpp:
call_function, then release_variables).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.steps import Steps, optimizer_stacks
from vramlens.trace import NO_STACK, DeviceTrace, Stacks, Trace


class Phase(IntEnum):
    """What the program was doing. OTHER is outside the loop: building the model, loading,
    saving.
    """

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    EVALUATION = 4
    UNKNOWN = 5


_BACKWARD_CALL = re.compile(
    r"torch[/\\](?:_tensor\.py:backward|autograd[/\\](?:__init__\.py:(?:backward|grad|_make_grads)"
    r"|graph\.py:_engine_run_backward))$"
)
LINEAR_FORWARD = re.compile(r"torch[/\\]nn[/\\]modules[/\\]linear\.py:forward$")
EMBEDDING_FORWARD = re.compile(r"torch[/\\]nn[/\\]modules[/\\]sparse\.py:forward$")
MODULE_CALL = re.compile(r"torch[/\\]nn[/\\]modules[/\\]module\.py:_call_impl$")
_BACKWARD_ENGINE = re.compile(
    r"torch::autograd::(?:Engine::(?:thread_main|evaluate_function)|Node::operator)"
)
# The outermost frame of a stack that began on one of autograd's threads: custom functions, hooks,
# checkpoints.
_AUTOGRAD_ROOT = re.compile(
    r"torch[/\\](?:autograd|utils[/\\]checkpoint|_functorch|_dynamo[/\\]compiled_autograd|nn[/\\]modules[/\\]module\.py"
    r"|distributed|_higher_order_ops)"
)


@dataclass(frozen=True, eq=False)
class Phases:
    """One row an allocation.

    Attributes:
        phase: a Phase.
        frame: the user line as a frame id: the allocation's own, or for the backward pass the
            forward line whose saved tensors die around it; -1 where there is none.
        inferred: True where the line is that of the forward pass (``likely``, not proven).
        span: which backward pass it belongs to, -1 outside of one.
        span_last, span_end: by backward pass: its last allocation's event, and the event at which
            it is over.
    """

    phase: NDArray[np.uint8]
    frame: NDArray[np.int64]
    inferred: NDArray[np.bool_]
    span: NDArray[np.int64]
    span_start: NDArray[np.int64]
    span_last: NDArray[np.int64]
    span_end: NDArray[np.int64]

    @cached_property
    def optimizer_ran(self) -> bool:
        """Whether an optimizer asked for memory in its step."""
        return bool((self.phase == Phase.OPTIMIZER).any())

    def ends_before(self, event: int) -> NDArray[np.int64]:
        """The ends of the backward passes that were over before an event."""
        return self.span_end[self.span_end < event]

    def passes_before(self, births: NDArray[np.int64], event: int) -> NDArray[np.int64]:
        """How many backward passes were over at each of some births, of those over before an event: one ends
        with the first request after it, which is none of its own.
        """
        return np.searchsorted(self.ends_before(event), births, side="right")

    def span_at(self, events: NDArray[np.int64]) -> NDArray[np.int64]:
        """The backward pass that runs at each of some events; -1 where none does."""
        span = np.searchsorted(self.span_start, events, side="right") - 1
        runs = span >= 0
        runs[runs] = events[runs] < self.span_end[span[runs]]
        return np.where(runs, span, -1)


def phases_of(trace: Trace, device: DeviceTrace, steps: Steps) -> Phases:
    """The phase and the user line of every allocation of a device."""
    allocations, stacks = device.allocations, trace.stacks
    count = len(allocations)
    has_stack = allocations.stack != NO_STACK
    has_stack[has_stack] = stacks.has_python[allocations.stack[has_stack]]
    recorded = allocations.born >= 0
    by_stack = _StackFlags(stacks)

    def flag(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        marked = np.zeros(count, np.bool_)
        has_stack = allocations.stack != NO_STACK
        marked[has_stack] = flags[allocations.stack[has_stack]]
        return marked

    frame = np.full(count, -1, np.int64)
    frame[has_stack] = stacks.user_frame[allocations.stack[has_stack]]
    phase = np.full(count, Phase.UNKNOWN, np.uint8)
    inferred = np.zeros(count, np.bool_)
    span = np.full(count, -1, np.int64)
    nothing = np.zeros(0, np.int64)
    if not has_stack[recorded].any():
        return Phases(
            phase=phase,
            frame=frame,
            inferred=inferred,
            span=span,
            span_start=nothing,
            span_last=nothing,
            span_end=nothing,
        )

    optimizer, called = flag(by_stack.optimizer), flag(by_stack.module_call)
    backward = flag(by_stack.backward) & ~optimizer | (recorded & ~has_stack)
    starts, lasts, ends = _spans(trace, device, backward, flag(by_stack.backward), frame)
    if len(starts):
        place = np.searchsorted(starts, allocations.born, side="right") - 1
        inside = backward & (place >= 0)
        inside[inside] = allocations.born[inside] <= lasts[place[inside]]
        span[inside] = place[inside]
    backward &= span >= 0

    phase[has_stack] = Phase.OTHER
    forward = has_stack & recorded & ~backward & ~optimizer
    phase[forward & (called | _recurs(allocations.stack, steps.of(allocations.born), forward))] = (
        Phase.FORWARD
    )
    if len(starts):
        freed_in = np.searchsorted(starts, allocations.free_requested, side="right") - 1
        dies_in_backward = (freed_in >= 0) & (allocations.born < starts[freed_in])
        dies_in_backward &= allocations.free_requested < ends[freed_in]
        # What the program drops at its end may seem given up too, but it has lived through other
        # passes.
        lately = (freed_in == 0) | (allocations.born >= starts[np.maximum(freed_in - 1, 0)])
        phase[forward & dies_in_backward & lately] = Phase.FORWARD
    else:
        dies_in_backward = np.zeros(count, np.bool_)
    phase[backward] = Phase.BACKWARD
    phase[optimizer] = Phase.OPTIMIZER
    phase[
        _evaluation(
            allocations.stack, phase, called, dies_in_backward, by_stack, starts, allocations.born
        )
    ] = Phase.EVALUATION
    phases = Phases(
        phase=phase,
        frame=frame,
        inferred=inferred,
        span=span,
        span_start=starts,
        span_last=lasts,
        span_end=ends,
    )
    _lend_lines(device, phases, flag(by_stack.backward_call))
    return phases


class _StackFlags:
    """What the frames of each stack say."""

    def __init__(self, stacks: Stacks) -> None:
        self.stacks = stacks
        self.optimizer = optimizer_stacks(stacks)
        self.backward_call = stacks.any_frame(stacks.mark_frames(_BACKWARD_CALL))
        engine = stacks.any_frame(stacks.mark_frames(_BACKWARD_ENGINE))
        self._module_frames = stacks.mark_frames(MODULE_CALL)
        self.module_call = stacks.any_frame(self._module_frames)
        lengths = np.diff(stacks.starts)
        roots = np.zeros(len(stacks), np.bool_)
        filled = lengths > 0
        roots[filled] = stacks.mark_frames(_AUTOGRAD_ROOT)[
            stacks.frames[stacks.starts[1:][filled] - 1]
        ]
        self.backward = self.backward_call | roots | engine

    def callers(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Who called the outermost module of each stack.

        By stack: a number for the user's lines outside of that call, and one for the function they
            are in; -1
        without such a call. By caller: whether it calls nothing but single layers.
        """
        stacks = self.stacks
        caller_of, function_of = dict[bytes, int](), dict[bytes, int]()
        callers, functions = np.full(len(stacks), -1, np.int64), np.full(len(stacks), -1, np.int64)
        nested: list[bool] = []
        for stack in np.flatnonzero(self.module_call).tolist():
            frames = stacks.frames[stacks.starts[stack] : stacks.starts[stack + 1]]
            calls = np.flatnonzero(self._module_frames[frames])
            outside = frames[int(calls[-1]) + 1 :]
            outside = outside[stacks.user_frames[outside]]
            caller = callers[stack] = caller_of.setdefault(outside.tobytes(), len(caller_of))
            place = np.append(stacks.frame_file[outside[:1]], stacks.frame_function[outside[:1]])
            functions[stack] = function_of.setdefault(
                place.tobytes() + outside[1:].tobytes(), len(function_of)
            )
            nested += [False] * (caller + 1 - len(nested))
            nested[caller] |= len(calls) > 1
        return callers, functions, ~np.array(nested, np.bool_)


def _spans(
    trace: Trace,
    device: DeviceTrace,
    candidate: NDArray[np.bool_],
    sure: NDArray[np.bool_],
    frame: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Backward passes: first and last allocation event of each, and the event at which it is over.

    A run of allocations from autograd's threads is one if the backward call is in it, or if it
    gives up memory that lines of the user's had asked for before; other threads (data loaders,
    NCCL) leave no frames either.
    """
    allocations, events = device.allocations, len(device.events)
    rows = np.flatnonzero(allocations.born >= 0)
    is_candidate = candidate[rows]
    edge = np.flatnonzero(np.diff(np.concatenate(([False], is_candidate, [False])).astype(np.int8)))
    first, after = edge[::2], edge[1::2]
    born = np.append(allocations.born[rows], events)
    starts, lasts, ends = born[first], born[after - 1], born[after]
    ends = np.minimum(ends, _next_optimizer_start(trace, device, lasts, ends))
    named = frame >= 0
    freed = np.sort(allocations.free_requested[named & ~candidate])
    gives_up = np.searchsorted(freed, ends) > np.searchsorted(freed, starts, side="right")
    calls = np.concatenate(([0], np.cumsum(sure[rows])))
    real = gives_up | (calls[after] > calls[first])
    return starts[real], lasts[real], ends[real]


def optimizer_texts(trace: Trace) -> list[int]:
    """The ids of the marks' names that PyTorch gives for an optimizer's calls."""
    names = np.unique(trace.annotations.name).tolist()
    return [name for name in names if trace.stacks.strings[name].startswith("Optimizer.")]


def _next_optimizer_start(
    trace: Trace, device: DeviceTrace, lasts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The event at which an optimizer step is marked to begin within [last, end); else the end."""
    notes, names = trace.annotations, optimizer_texts(trace)
    if not names or not len(device.events):
        return ends
    is_start = (
        np.isin(notes.name, names) & notes.starts & np.isin(notes.device, (device.device, -1))
    )
    begins = np.append(
        np.searchsorted(device.clock_us, np.sort(notes.time_us[is_start])), len(device.events)
    )
    following = begins[np.searchsorted(begins[:-1], lasts, side="right")]
    return np.asarray(np.minimum(following, ends))


def _recurs(
    stack: NDArray[np.uint32], step: NDArray[np.int64], among: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Whether an allocation's stack asks for memory in more than one step."""
    marked = np.zeros(len(stack), np.bool_)
    rows = np.flatnonzero(among)
    if len(rows):
        # Rows are in order of birth: of several assignments to one stack the last stays.
        earliest, latest = np.zeros((2, int(stack[rows].max()) + 1), np.int64)
        earliest[stack[rows[::-1]]] = step[rows[::-1]]
        latest[stack[rows]] = step[rows]
        marked[rows] = (latest > earliest)[stack[rows]]
    return marked


def _evaluation(
    stack: NDArray[np.uint32],
    phase: NDArray[np.uint8],
    called: NDArray[np.bool_],
    dies_in_backward: NDArray[np.bool_],
    flags: _StackFlags,
    span_starts: NDArray[np.int64],
    born: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Forward allocations of calls of which no pass ever gave anything up to a backward pass,
    although others did.
    """
    rows = np.flatnonzero((phase == Phase.FORWARD) & called)
    if not len(rows) or not dies_in_backward.any():
        return rows[:0]
    callers, functions, single_layers = flags.callers()
    caller, function = callers[stack[rows]], functions[stack[rows]]
    trains = np.bincount(caller, weights=dies_in_backward[rows], minlength=len(single_layers)) > 0
    # What follows a call (an activation function, the loss) goes with the call: the latest one
    # before it.
    forward = np.flatnonzero(phase == Phase.FORWARD)
    place = np.searchsorted(rows, forward, side="right") - 1
    forward, place = forward[place >= 0], place[place >= 0]
    # A single layer may keep nothing while its neighbours do: then the function around it tells.
    function_trains = (
        np.bincount(
            function[place], weights=dies_in_backward[forward], minlength=function.max() + 1
        )
        > 0
    )
    function_of = np.zeros(len(trains), np.int64)
    function_of[caller] = function
    trains |= single_layers & function_trains[function_of]
    # A call whose first pass has not met a backward pass yet says nothing.
    first = np.full(len(trains), np.iinfo(np.int64).max)
    np.minimum.at(first, caller, born[rows])
    evaluates = ~trains & (first < span_starts[-1])
    return np.asarray(forward[evaluates[caller[place]] & ~dies_in_backward[forward]])


def _lend_lines(device: DeviceTrace, phases: Phases, calls: NDArray[np.bool_]) -> None:
    """Gives the backward pass's allocations without a line the forward line whose backward is
    under way.
    """
    allocations, frame, span = device.allocations, phases.frame, phases.span
    lenders = np.flatnonzero((phases.phase == Phase.FORWARD) & (frame >= 0))
    lenders = lenders[np.argsort(allocations.free_requested[lenders], kind="stable")]
    when = np.append(allocations.free_requested[lenders], len(device.events) + 1)
    borrowers = np.flatnonzero((span >= 0) & (frame < 0))
    if not len(borrowers):
        return
    place = np.searchsorted(when, allocations.born[borrowers], side="right")
    end, start = phases.span_end[span[borrowers]], phases.span_start[span[borrowers]]
    later = np.minimum(place, len(lenders) - 1)
    earlier = np.maximum(place - 1, 0)
    lent = np.full(len(borrowers), -1, np.int64)
    if len(lenders):
        use_earlier = (place > 0) & (when[earlier] >= start)
        lent[use_earlier] = frame[lenders[earlier[use_earlier]]]
        use_later = (place < len(lenders)) & (when[place] < end)
        lent[use_later] = frame[lenders[later[use_later]]]
    # Nothing given up in this pass: the line that called backward.
    caller = np.full(len(phases.span_start), -1, np.int64)
    callers = np.flatnonzero(calls & (frame >= 0) & (span >= 0))
    caller[span[callers][::-1]] = frame[callers][::-1]
    lent = np.where(lent < 0, caller[span[borrowers]], lent)
    frame[borrowers] = lent
    phases.inferred[borrowers] = lent >= 0
