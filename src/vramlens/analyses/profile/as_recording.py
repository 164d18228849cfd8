"""A profiler's trace as a recording: its memory events as the allocator's, so that every question to
recordings can be asked of it.

What a trace does not have stays unknown and is told in ``missing``: segments, requested sizes
(its sizes are rounded as the allocator rounds them) and lines inside of functions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Category, Certainty
from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.profile.lifetimes import CATEGORIES, PHASES, Lifetimes, lifetimes_of
from vramlens.analyses.profile.nesting import nest
from vramlens.analyses.profile.recorded_stacks import StackTable
from vramlens.analyses.profile.user_lines import Lines
from vramlens.errors import InputError
from vramlens.trace import (
    BEFORE,
    NO_STACK,
    NO_TEXT,
    Action,
    Allocations,
    Annotations,
    Counter,
    DeviceTrace,
    Events,
    OutOfMemory,
    Segments,
    Trace,
)
from vramlens.trace.profile import CPU_KINDS, Kind, ProfilerTrace
from vramlens.trace.storage_facts import AllocationFacts

_LIMITS = "a profiler trace has sizes as the allocator rounded them up, and no segments"
_BEGINS = "; of lines, those at which functions begin"
_NO_LINES = "; torch.profiler.profile(with_stack=True) records lines, too"
_CPU = "GPU memory: the trace has none; this is the CPU's memory, shown as device 0"
_CATEGORY = {
    "activations": Category.ACTIVATIONS,
    "gradients": Category.GRADIENTS,
    "optimizer_state": Category.OPTIMIZER_STATE,
    "temporaries": Category.TEMPORARIES,
    "other": Category.OTHER,
}
_PHASE = {
    "elsewhere": Phase.FORWARD,
    "backward": Phase.BACKWARD,
    "optimizer": Phase.OPTIMIZER,
}
_MOST_REGIONS = 200_000


def recording_of(trace: ProfilerTrace) -> Trace:
    """The recording that a profiler's trace amounts to.

    Raises:
        InputError: the trace has no memory events, or names no addresses.
    """
    if not len(trace.memory):
        raise InputError(
            f"{trace.source}: holds no memory events;"
            " torch.profiler.profile(profile_memory=True) records them"
        )
    cpu = nest(trace, CPU_KINDS)
    lines = Lines(trace, cpu)
    stacks = StackTable(trace, cpu, lines)
    devices: dict[int, DeviceTrace] = {}
    facts: dict[int, AllocationFacts] = {}
    indices = _device_indices(trace)
    for number, index in indices.items():
        lives = lifetimes_of(trace, cpu, lines, index)
        if not lives.paired:
            raise InputError(
                f"{trace.source}: has no addresses (PyTorch before 1.11),"
                " so it is unknown what was freed"
            )
        device, stack_of_row = _device(trace, lives, stacks, number, index)
        devices[number] = device
        facts[number] = _facts(lives, stacks, stack_of_row)
    annotations = _annotations(trace, stacks)
    is_cpu = all(trace.memory_devices[index].is_cpu for index in indices.values())
    return Trace(
        source=trace.source,
        stacks=stacks.stacks(),
        devices=devices,
        host=(),
        annotations=annotations,
        pools=np.zeros((0, 2), np.int64),
        settings={},
        missing=(
            *trace.missing,
            *([_CPU] if is_cpu else []),
            _LIMITS + (_BEGINS if lines.known else _NO_LINES),
        ),
        device_name=_device_name(trace),
        profile=trace,
        facts=facts,
    )


def _device_indices(trace: ProfilerTrace) -> dict[int, int]:
    """By the number of each GPU its index into ``memory_devices``; the CPU's as device 0 where the
    trace tells of no GPU.
    """
    used = np.unique(trace.memory.device).tolist()
    gpus = {
        max(trace.memory_devices[index].index, 0): index
        for index in reversed(used)
        if not trace.memory_devices[index].is_cpu
    }
    return dict(sorted(gpus.items())) or {0: used[0]}


def _device_name(trace: ProfilerTrace) -> str | None:
    described = trace.facts.get("deviceProperties")
    if isinstance(described, list) and described and isinstance(described[0], dict):
        name = described[0].get("name")
        return name[:100] if isinstance(name, str) else None
    return None


def _device(
    trace: ProfilerTrace,
    lives: Lifetimes,
    stacks: StackTable,
    number: int,
    index: int,
) -> tuple[DeviceTrace, NDArray[np.uint32]]:
    """One device, and the stack of each allocation."""
    memory = trace.memory
    rows = np.flatnonzero((memory.device == index) & ((memory.size != 0) | memory.failed))
    place = np.searchsorted(rows, lives.events)  # of the events that have lifetimes
    count = len(rows)
    stack_of_birth = stacks.of(memory.thread[lives.events], memory.time_ns[lives.events], lives)
    allocations, event_of_row = _allocations(trace, lives, place, count, stack_of_birth)
    failed = np.flatnonzero(memory.failed[rows])
    stack = np.full(count, NO_STACK, np.uint32)
    stack[place[lives.born]] = stack_of_birth
    action = np.where(memory.size[rows] > 0, Action.ALLOC, Action.FREE_COMPLETED)
    action[failed] = Action.OOM
    events = Events(
        action=action.astype(np.uint8),
        address=memory.address[rows],
        size=np.abs(memory.size[rows]).astype(np.uint64),
        stream=np.zeros(count, np.uint64),
        time_us=trace.began_us + memory.time_ns[rows] // 1000,
        stack=stack,
        compile_context=np.full(count, NO_TEXT, np.uint32),
        user_metadata=np.full(count, NO_TEXT, np.uint32),
        other_action=np.full(count, NO_TEXT, np.uint32),
        pool=np.full(count, NO_TEXT, np.uint32),
    )
    live_bytes = _counter(allocations, count)
    reserved = memory.reserved[rows]
    most_reserved = int(reserved.argmax()) if count else 0
    device = DeviceTrace(
        device=number,
        events=events,
        allocations=allocations,
        segments=_no_segments(),
        requested=live_bytes,
        allocated=live_bytes,
        active=live_bytes,
        reserved=Counter(0, max(int(reserved.max(initial=0)), 0), most_reserved),
        allocation_of_event=event_of_row,
        whole=not trace.missing,
        orphan_events=0,
        missized=0,
        out_of_memory=tuple(
            OutOfMemory(
                event=event,
                size_bytes=int(abs(memory.size[rows[event]])),
                device_free_bytes=None,
                stream=0,
                stack=NO_STACK,
            )
            for event in failed.tolist()
        ),
    )
    return device, allocations.stack


def _allocations(
    trace: ProfilerTrace,
    lives: Lifetimes,
    place: NDArray[np.int64],
    count: int,
    stack_of_birth: NDArray[np.uint32],
) -> tuple[Allocations, NDArray[np.int32]]:
    """The allocations, those from before the trace first, and the row that each event is about."""
    memory = trace.memory
    size = memory.size[lives.events]
    ends = lives.died[lives.died >= 0]
    is_orphan = size < 0
    is_orphan[ends] = False
    orphans = np.flatnonzero(is_orphan)  # given back, but asked for before the trace
    rest_bytes = _rest_bytes(trace, lives, orphans)
    older = len(orphans) + (rest_bytes > 0)
    unreturned = [rest_bytes] if rest_bytes > 0 else []
    born = np.concatenate((np.full(older, BEFORE, np.int64), place[lives.born]))
    died_of_lives = np.where(lives.died >= 0, place[lives.died], count)
    died = np.concatenate((place[orphans], [count] * len(unreturned), died_of_lives)).astype(
        np.int64
    )
    sizes = np.concatenate((-size[orphans], unreturned, lives.size)).astype(np.int64)
    addresses = memory.address[lives.events]
    address = np.concatenate(
        (addresses[orphans], np.zeros(len(unreturned), np.uint64), addresses[lives.born])
    )
    stack = np.concatenate((np.full(older, NO_STACK, np.uint32), stack_of_birth))
    row_of_event = np.full(count, -1, np.int32)
    numbers = np.arange(len(born), dtype=np.int32)
    row_of_event[died[died < count]] = numbers[died < count]
    row_of_event[born[born >= 0]] = numbers[born >= 0]
    return Allocations(
        born=born,
        free_requested=died,
        died=died,
        address=address.astype(np.uint64),
        requested_bytes=sizes,
        taken_bytes=sizes,
        stream=np.zeros(len(born), np.uint64),
        stack=stack.astype(np.uint32),
        segment=np.full(len(born), NO_TEXT, np.uint32),
        pool=np.full(len(born), NO_TEXT, np.uint32),
    ), row_of_event


def _rest_bytes(trace: ProfilerTrace, lives: Lifetimes, orphans: NDArray[np.int64]) -> int:
    """Bytes from before the trace that nothing in it gives back, by the allocator's own sum."""
    first = lives.events[:1]
    if not len(first) or trace.memory.allocated[first[0]] < 0:
        return 0
    before = int(trace.memory.allocated[first[0]] - trace.memory.size[first[0]])
    return max(0, before - int(-trace.memory.size[lives.events[orphans]].sum()))


def _counter(allocations: Allocations, count: int) -> Counter:
    """What was alive, counted from the lifetimes."""
    change = np.zeros(count + 1, np.int64)
    is_recorded = allocations.born >= 0
    sizes = allocations.requested_bytes
    np.add.at(change, allocations.born[is_recorded], sizes[is_recorded])
    np.subtract.at(change, allocations.died, sizes)
    base = int(sizes[~is_recorded].sum())
    curve = base + np.cumsum(change[:-1])
    peak = int(curve.argmax()) if count else 0
    return Counter(base, max(base, int(curve.max(initial=0))), peak)


def _no_segments() -> Segments:
    none = np.zeros(0, np.int64)
    return Segments(
        born=none,
        died=none,
        address=none.astype(np.uint64),
        size_bytes=none,
        stream=none.astype(np.uint64),
        expandable=none.astype(np.uint8),
        pool=none.astype(np.uint32),
    )


def _facts(
    lives: Lifetimes, stacks: StackTable, stack_of_row: NDArray[np.uint32]
) -> AllocationFacts:
    """Category, phase and function of each allocation; of those from before nothing is known."""
    older = len(stack_of_row) - len(lives.born)
    categories = np.array([_CATEGORY[name] for name in CATEGORIES], np.uint8)
    phases = np.array([_PHASE[name] for name in PHASES], np.uint8)
    phase = phases[lives.phase] if lives.has_categories else np.full(len(lives.born), Phase.UNKNOWN)

    def with_older(values: NDArray[np.generic], of_older: int) -> NDArray[np.generic]:
        return np.concatenate((np.full(older, of_older, values.dtype), values))

    return AllocationFacts(
        category=with_older(categories[lives.category], Category.OTHER).astype(np.uint8),
        certainty=np.full(len(stack_of_row), Certainty.LIKELY, np.uint8),
        phase=with_older(phase, Phase.UNKNOWN).astype(np.uint8),
        frame=with_older(stacks.user_frames(lives.user), -1).astype(np.int64),
        inferred=with_older(lives.inferred, 0).astype(np.bool_),
    )


def _annotations(trace: ProfilerTrace, stacks: StackTable) -> Annotations:
    """The regions' beginnings and ends, in order of time; of very many, the longest."""
    spans = trace.spans
    rows = spans.of((Kind.REGION,))
    if len(rows) > _MOST_REGIONS:
        lasted = spans.end_ns[rows] - spans.start_ns[rows]
        rows = np.sort(rows[np.argsort(-lasted, kind="stable")[:_MOST_REGIONS]])
    texts = [stacks.text(trace.names[name]) for name in spans.name[rows].tolist()]
    name = np.tile(np.array(texts, np.uint32), 2)
    time_us = trace.began_us + np.concatenate((spans.start_ns[rows], spans.end_ns[rows])) // 1000
    starts = np.arange(len(name)) < len(rows)
    order = np.argsort(time_us, kind="stable")
    return Annotations(
        name=name[order],
        starts=starts[order],
        device=np.full(len(name), -1, np.int32),
        time_us=time_us[order].astype(np.int64),
    )
