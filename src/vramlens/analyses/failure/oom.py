"""The out-of-memory verdict of a recording: what the request hit (wall), and why it came to that
(cause).

Sources: c10/cuda/CUDACachingAllocator.cpp (get_allocation_size: the segment asked of the driver;
malloc: what is tried before it fails), and docs/json.md for the meaning of wall and cause.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.explanation import OomVerdict
from vramlens.analyses.failure.allocator_retry import has_fitting_block
from vramlens.analyses.failure.failed_request import NOTHING_KNOWN, Failure, Outside
from vramlens.analyses.failure.headline import HeadlineFacts, headline_of
from vramlens.analyses.failure.largest_use import largest_use_of
from vramlens.analyses.failure.need import open_settings, unknown_need
from vramlens.analyses.failure.refused_workspaces import refused_workspaces
from vramlens.analyses.failure.step_evidence import are_steps, leaks_of_steps, repeats_earlier
from vramlens.analyses.finding import Place
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.analyses.memory.fragmentation import Holes, holes_at
from vramlens.analyses.memory.heap import Heap
from vramlens.analyses.memory.run_shape import StepPeaks
from vramlens.ground.allocator_sizes import LARGE_SEGMENT, SMALL_REQUEST, segment_size
from vramlens.ground.conf_text import VARIABLES, recorded_conf, variable_of
from vramlens.read.oom.oom_text import OomMessage
from vramlens.trace import DeviceTrace, OutOfMemory, Trace
from vramlens.units import MIB

_FRACTION_PARTS = 10_000
_SPIKE = 2.0
_ROUNDED = 0.005
"""How far a text's figures may be off."""
_TELLING_HOLES = 0.1
"""Of the limit: a step that still grows outgrows less than that."""
_RISE = 1.1
"""Earlier steps "did not rise" when the last of them is at most this much above the first."""


def failure_of(view: Attribution, outside: Outside = NOTHING_KNOWN) -> Failure | None:
    """The figures of the last failed request of a device; None when nothing failed."""
    device = view.device
    if not device.out_of_memory:
        return None
    request = device.out_of_memory[-1]
    event = request.event
    allocations = device.allocations
    alive = allocations.alive_after(event)
    in_use = alive[allocations.free_requested[alive] > event]
    reserved = int(device.segments.size_bytes[device.segments.alive_after(event)].sum())
    tried = segment_size(request.size_bytes, _large_segment(view))
    free = (
        request.device_free_bytes if request.device_free_bytes is not None else outside.free_bytes
    )
    holes = holes_at(device, event)
    is_usable, pool = _usable(view, holes, request)
    sizes = holes.size_bytes[is_usable]
    limited = outside.limit_bytes is not None or (free is not None and free >= tried)
    low = high = room = None
    if limited:
        low, high = _limit_bounds(device, reserved, _large_segment(view))
        if outside.limit_bytes is not None:
            low = high = outside.limit_bytes
            room = max(0, outside.limit_bytes - reserved)
            room = room if free is None else min(room, free)
    elif free is not None:
        room = free
    return Failure(
        request=request,
        tried_bytes=tried,
        live_bytes=int(allocations.requested_bytes[alive].sum()),
        allocated_bytes=int(allocations.taken_bytes[in_use].sum()),
        reserved_bytes=reserved,
        free_bytes=free,
        pool=pool,
        usable_free_bytes=int(sizes.sum()),
        usable_holes=len(sizes),
        largest_usable_bytes=int(sizes.max(initial=0)),
        limit_low_bytes=low,
        limit_high_bytes=high,
        room_bytes=room,
        expandable=bool(view.trace.settings.get("expandable_segments")),
        usable_ranges=holes.ranges[is_usable],
    )


def message_of(messages: Sequence[OomMessage], failure: Failure, device: int) -> OomMessage | None:
    """The error text that a failure printed: the same device, the same request, the nearest
    allocated bytes.

    A job's log holds the errors of many processes; None when none of them can be this failure's.
    """

    def distance(message: OomMessage) -> int:
        return (
            0 if message.live_bytes is None else abs(message.live_bytes - failure.allocated_bytes)
        )

    fitting = [
        message
        for message in messages
        if message.tried_bytes is not None
        and abs(message.tried_bytes - failure.tried_bytes) <= message.slack("tried_bytes")
        and message.device in (None, device)
        and distance(message) <= message.slack("allocated_bytes") + failure.allocated_bytes // 50
    ]
    return min(fitting, key=distance, default=None)


def memory_fraction(size_bytes: int, total_bytes: int) -> str:
    """``0.8125``: the least fraction of a device's memory, of four digits, that is so many bytes, as
    ``torch.cuda.set_per_process_memory_fraction`` takes it.
    """
    return f"{-(-size_bytes * _FRACTION_PARTS // total_bytes) / _FRACTION_PARTS:.4f}"


def settings_variable(trace: Trace) -> str:
    """The environment variable for allocator settings: the one that the run had set, which would
    overrule another; else by the name that the recorded PyTorch gives it.
    """
    names = (name for name in VARIABLES if name in trace.meta.environment)
    return next(names, None) or variable_of(trace.torch_version)


def _large_segment(view: Attribution) -> int:
    setting = re.search(r"large_segment_size_mb:(\d{1,6})\b", recorded_conf(view.trace.settings))
    return int(setting[1]) * MIB if setting else LARGE_SEGMENT


def _usable(
    view: Attribution, holes: Holes, request: OutOfMemory
) -> tuple[NDArray[np.bool_], str | None]:
    """Whether the request could have come from each free block, had it been large enough; and its
    private pool, if any.

    Before PyTorch 2.12 events name no pool. But a pool with a block that would have done cannot be
    the request's own: it is the default pool unless that has such a block, else the private pool
    that has none.
    """
    device = view.device
    segment = holes.segments[holes.segment]
    small = request.size_bytes <= SMALL_REQUEST
    fitting = (device.segments.stream[segment] == request.stream) & (
        holes.small[holes.segment] == small
    )
    limit = view.trace.settings.get("max_split_size")
    if (
        isinstance(limit, int) and 0 < request.size_bytes < limit
    ):  # larger blocks are kept for larger requests
        fitting &= holes.size_bytes < limit
    pools = view.trace.pools
    private = np.array([bool(pair.any()) for pair in pools] + [False], np.bool_)
    # The last place: unknown, so default.
    pool = np.minimum(device.segments.pool[segment].astype(np.int64), len(pools))
    default = fitting & ~private[pool]
    candidates = _candidate_pools(device, request, private)
    for candidate in candidates:
        usable = default if candidate is None else fitting & (pool == candidate)
        largest = int(holes.size_bytes[usable].max(initial=0))
        if largest < request.size_bytes or len(candidates) == 1:
            return usable, None if candidate is None else str(tuple(pools[candidate].tolist()))
    return default, None


def _candidate_pools(
    device: DeviceTrace, request: OutOfMemory, private: NDArray[np.bool_]
) -> list[int | None]:
    """The private pools that the request may have been for, after None for the default pool."""
    unknown = len(private) - 1
    if device.events.has_pools:
        pool = min(int(device.events.pool[request.event]), unknown)
        return [pool if private[pool] else None]
    live_pools = device.segments.pool[device.segments.alive_after(request.event)]
    pools = np.unique(live_pools).tolist()
    return [None, *(pool for pool in pools if pool < unknown and private[pool])]


def _limit_bounds(device: DeviceTrace, reserved: int, large_segment: int) -> tuple[int, int | None]:
    """What the process's limit can be: no less than was ever reserved, less than what a failure
    would have made it.

    Segments given back before one is taken tell nothing: a program's own empty_cache looks like a
        retry. No upper bound
    where a failure lies below what was reserved at other times: then the limit was another one.
    """
    highest = max(device.reserved.peak_bytes, reserved)
    curve = device.reserved_curve
    refused = min(
        int(curve[f.event]) + segment_size(f.size_bytes, large_segment)
        for f in device.out_of_memory
    )
    return highest, refused - 1 if refused > highest else None


def verdict_of(
    view: Attribution,
    failure: Failure,
    leaks: tuple[RecordedLeak, ...],
    peaks: StepPeaks,
    outside: Outside,
    heap: Heap,
    *,
    survived: bool,
) -> OomVerdict:
    """The verdict on a failure.

    Args:
        heap: the memory in use at it.
        survived: whether the program went on after it.
    """
    largest_use = largest_use_of(view, heap)
    wall = wall_of(failure, outside)
    cause = _cause(view, failure, leaks, peaks)
    short = _short(failure, wall)
    place = view.place_of_stack(failure.request.stack) or _backward_place(
        view, failure.request.event
    )
    unknowns = []
    if wall == "process_limit" and failure.limit_low_bytes != failure.limit_high_bytes:
        unknowns.append(
            "A snapshot does not contain the process limit. Pass the error message with --log "
            "for the exact limit."
        )
    if failure.free_bytes is None:
        unknowns.append("The recording does not say how much was free on the device.")
    if wall == "device" and outside.total_bytes is None:
        unknowns.append(
            "A snapshot does not show who else used the device. Pass the error message with --log."
        )
    return OomVerdict(
        event=failure.request.event,
        device=view.device.device,
        count=len(view.device.out_of_memory),
        refused_workspaces=refused_workspaces(view.trace.stacks, view.device),
        requested_bytes=failure.request.size_bytes,
        tried_bytes=failure.tried_bytes,
        allocated_bytes=failure.allocated_bytes,
        reserved_bytes=failure.reserved_bytes,
        free_bytes=failure.free_bytes,
        largest_free_bytes=failure.largest_usable_bytes,
        limit_bytes=outside.limit_bytes,
        wall=wall,
        cause=cause,
        short_by_bytes=short,
        place=place,
        headline=headline_of(
            HeadlineFacts(
                failure,
                wall,
                cause,
                leaks=leaks,
                short_bytes=short,
                fits_a_free_block=has_fitting_block(view, failure),
                largest_use=largest_use,
            )
        ),
        survived=survived,
        unknowns=tuple(unknowns),
        need=unknown_need(failure.live_bytes + failure.request.size_bytes),
        settings=open_settings(),
        largest_use=largest_use,
    )


def _backward_place(view: Attribution, event: int) -> Place | None:
    """The forward line whose backward was under way: that of the latest allocation of the same
    backward pass.
    """
    allocations, phases = view.device.allocations, view.phases
    before = np.flatnonzero((allocations.born >= 0) & (allocations.born < event))
    if not len(before) or phases.span[before[-1]] < 0:
        return None
    return view.place(int(phases.frame[before[-1]]))


def wall_of(failure: Failure, outside: Outside) -> str:
    """The limit that refused a request."""
    needed, limit = failure.reserved_bytes + failure.tried_bytes, outside.limit_bytes
    if failure.free_bytes is None:
        return (
            "process_limit" if limit is not None and needed > (1 - _ROUNDED) * limit else "unknown"
        )
    # The allocator looks at its own limit before it asks the driver (alloc_block).
    if failure.free_bytes >= failure.tried_bytes or (
        limit is not None and needed > (1 + _ROUNDED) * limit
    ):
        return "process_limit"
    other_bytes = outside.other_bytes
    if other_bytes is not None and failure.free_bytes + other_bytes >= failure.tried_bytes:
        return "other_process"
    return "device"


def _cause(
    view: Attribution, failure: Failure, leaks: tuple[RecordedLeak, ...], peaks: StepPeaks
) -> str:
    request = failure.request.size_bytes
    limit = failure.limit_low_bytes or failure.reserved_bytes
    if failure.usable_free_bytes >= max(request, _TELLING_HOLES * limit):
        return "fragmentation"
    leaked = sum(leak.bytes for leak in leaks_of_steps(view, leaks))
    if leaked and leaked + failure.usable_free_bytes + (failure.room_bytes or 0) >= request:
        return "leak"
    is_step = are_steps(view) and repeats_earlier(view, failure.request.event)
    return "spike" if is_step and _spikes(view, failure, peaks) else "capacity"


def _spikes(view: Attribution, failure: Failure, peaks: StepPeaks) -> bool:
    """Whether the failing step needs more than twice the highest earlier one, and the earlier
    ones did not rise.
    """
    step = int(view.steps.of(np.array([failure.request.event]))[0]) if len(view.steps) else 0
    earlier = peaks.own_bytes[:step]
    if len(earlier) < 2:
        return False
    needed = max(
        peaks.own_bytes[step],
        failure.live_bytes + failure.request.size_bytes - peaks.start_bytes[step],
    )
    # The first step also builds what lasts (the model, the optimizer's state): it does not count as
    # one that rose.
    first = earlier[1] if len(earlier) > 2 else min(earlier)
    return needed > _SPIKE * max(earlier) and earlier[-1] <= _RISE * first


def _short(failure: Failure, wall: str) -> int | None:
    """How many more bytes would have been enough, at least."""
    if wall in ("device", "other_process") and failure.free_bytes is not None:
        return failure.tried_bytes - failure.free_bytes
    if failure.limit_low_bytes is not None and failure.limit_low_bytes == failure.limit_high_bytes:
        return max(0, failure.reserved_bytes + failure.tried_bytes - failure.limit_low_bytes)
    return None
