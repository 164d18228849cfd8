"""A recording's summary: one rank's memory, lines, leaks, strays and failure."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution, attribute
from vramlens.analyses.failure.oom import failure_of, wall_of
from vramlens.analyses.failure.surroundings import message_for, outside_of
from vramlens.analyses.finding import Place
from vramlens.analyses.leaks.growth import leaks_of
from vramlens.analyses.leaks.outside_pytorch import context_bytes
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.ground.conf_text import recorded_conf
from vramlens.ground.vocabulary import Wall
from vramlens.ranks.avoidable import avoidable_uses
from vramlens.ranks.frame_uses import frame_uses
from vramlens.ranks.hints import RECOMPUTING, Hint, hints_of
from vramlens.ranks.line_uses import line_uses
from vramlens.ranks.parameter_groups import parameter_groups
from vramlens.ranks.rank_summary import Launch, RankFailure, RankGrowth, RankSummary, Stray
from vramlens.trace import NO_STACK, DeviceTrace, Meta, Trace

_MOST_STEPS = 4096
_LEAST_PART_OF_LEAK = 0.05
"""Of a leak, that one of its lines asked for."""
_FEWEST_TIMED_STEPS = 4
_LONGEST_COMMAND, _LONGEST_CONF = 500, 1000
_KINDS_OF_THIS_PROCESS = ("pytorch_", "this_process", "nccl")
"""How the names of the ledger's kinds begin that belong to the recorded process."""


def summarise(
    trace: Trace, rank: int, device: int | None = None, view: Attribution | None = None
) -> RankSummary:
    """The summary of a rank's recording.

    Args:
        trace: the recording.
        rank: its number.
        device: the device; by default the rank's own.
        view: that device's attribution, where it is at hand.
    """
    summary = RankSummary(
        rank=rank,
        source=trace.source,
        missing=trace.missing,
        alloc_conf=recorded_conf(trace.settings)[:_LONGEST_CONF] if trace.settings else None,
    )
    summary = _with_process(summary, trace.meta)
    index = _home_of(trace) if device is None else device
    if index is None:
        return summary
    summary = replace(
        summary,
        device=index,
        total_bytes=trace.total_bytes.get(index),
        ledger=_ledger(trace, index),
        pinned_bytes=_pinned_bytes(trace),
    )
    summary = _with_neighbors(summary, trace)
    device_trace = trace.devices.get(index)
    if device_trace is None:
        return summary
    if view is None or view.device is not device_trace:
        view = attribute(trace, device_trace)
    strays = () if device is not None else tuple(_strays(trace, device_trace))
    return replace(_with_memory(summary, view), strays=strays)


def _home_of(trace: Trace) -> int | None:
    """The device that a rank works on: the one with its number on its machine, where it recorded
    anything there; else the one with the highest requested peak.
    """
    local_rank = trace.meta.local_rank
    home = None if local_rank is None else trace.devices.get(local_rank)
    return trace.main_device if home is None or not len(home.events) else local_rank


def _with_process(summary: RankSummary, meta: Meta) -> RankSummary:
    ended = None
    if meta.trigger and meta.written_us is not None:
        ended = (meta.trigger, meta.written_us)
    return replace(
        summary,
        host=meta.host,
        pid=meta.pid,
        world_size=meta.world_size,
        groups=tuple(
            (group.description, group.spans) for group in meta.groups if group.description
        ),
        ended=ended,
        ending=meta.ending,
        local_rank=meta.local_rank,
        device_name=meta.device_name,
        started_us=meta.started_us,
        launch=_launch(meta),
    )


def _with_neighbors(summary: RankSummary, trace: Trace) -> RankSummary:
    """With the processes that the driver saw on the rank's device."""
    ledger = None if trace.ledgers is None else trace.ledgers.end.get(summary.device)
    processes = () if ledger is None else ledger.processes
    return replace(
        summary,
        driver_pid=next((process.pid for process in processes if process.is_recorded), None),
        neighbors=tuple(
            (process.pid, process.bytes) for process in processes if not process.is_recorded
        ),
    )


def _launch(meta: Meta) -> Launch | None:
    """How the process was started; None for recordings that do not say."""
    if meta.launcher_pid is None and not meta.command:
        return None
    return Launch(
        job=meta.job,
        attempt=meta.attempt,
        launcher_pid=meta.launcher_pid,
        command=" ".join(meta.command)[:_LONGEST_COMMAND],
    )


def _with_memory(summary: RankSummary, view: Attribution) -> RankSummary:
    device = view.device
    return replace(
        summary,
        peak_requested_bytes=device.requested.peak_bytes,
        peak_allocated_bytes=device.allocated.peak_bytes,
        peak_reserved_bytes=device.reserved.peak_bytes,
        before_bytes=device.requested.base_bytes,
        step_peaks=_step_peaks(view),
        step_us=_step_us(view),
        lines=line_uses(view),
        frames=frame_uses(view),
        leaks=tuple(_growth(view, leak) for leak in leaks_of(view)),
        avoidable=tuple(avoidable_uses(view)),
        parameters=parameter_groups(view.trace.names, device.device, len(view.steps)),
        recomputed_bytes=_recomputed_bytes(view),
        failure=_failure(view),
    )


def _recomputed_bytes(view: Attribution) -> int:
    """What backward passes requested to compute again what was not kept."""
    allocations = view.device.allocations
    recomputes = view.trace.stacks.within(RECOMPUTING, allocations.stack)
    return int(allocations.requested_bytes[recomputes].sum())


def _growth(view: Attribution, leak: RecordedLeak) -> RankGrowth:
    return RankGrowth(
        verdict=leak.verdict,
        place=leak.place,
        bytes_per_step=leak.bytes_per_step,
        bytes=leak.bytes,
        steps=leak.steps,
        fix=leak.advice,
        lines=_lines_of(view, leak),
        is_stored_data=leak.is_stored_data,
    )


def _lines_of(view: Attribution, leak: RecordedLeak) -> tuple[Place, ...]:
    """The lines that asked for a leak, those with the most bytes first; () where it is told at a caller."""
    rows = np.zeros(0, np.int64) if leak.rows is None else leak.rows
    line_bytes = Counter[Place | None]()
    sizes = view.device.allocations.requested_bytes[rows].tolist()
    for row, size in zip(rows.tolist(), sizes, strict=True):
        line_bytes[view.place_of_block(row)] += size
    least_bytes = _LEAST_PART_OF_LEAK * sum(sizes)
    large = [(place, size) for place, size in line_bytes.most_common() if size >= least_bytes]
    lines = tuple(place for place, _ in large if place is not None)
    return lines if leak.place in lines else ()


def _step_peaks(view: Attribution) -> tuple[int, ...]:
    if not len(view.steps) or not len(view.device.events):
        return ()
    starts = view.steps.starts[:_MOST_STEPS]
    end = int(view.steps.ends[len(starts) - 1])
    return tuple(np.maximum.reduceat(view.device.requested_curve[:end], starts).tolist())


def _step_us(view: Attribution) -> int | None:
    """The median time of the steps between the first and the last, which are seldom whole."""
    times = view.device.events.time_us
    if len(view.steps) < _FEWEST_TIMED_STEPS or not len(times) or times[-1] <= times[0]:
        return None
    return int(np.median(np.diff(times[view.steps.starts])[1:]))


def _strays(trace: Trace, home: DeviceTrace) -> list[Stray]:
    """Memory on other devices than the rank's own: segments, or what the driver alone saw."""
    strays = [
        _stray(trace, device)
        for device in trace.devices.values()
        if device is not home and device.device >= 0 and device.reserved.peak_bytes
    ]
    known_devices = {home.device, *(stray.device for stray in strays)}
    measured = {} if trace.ledgers is None else trace.ledgers.end
    contexts = {device: context_bytes(trace, device, ledger) for device, ledger in measured.items()}
    return strays + [
        Stray(device=device, reserved_bytes=0, process_bytes=size, place=None, hints=Hint.NONE)
        for device, size in contexts.items()
        if size and device not in known_devices
    ]


def _stray(trace: Trace, device: DeviceTrace) -> Stray:
    stray = Stray(
        device=device.device,
        reserved_bytes=device.reserved.peak_bytes,
        process_bytes=_process_bytes(trace, device.device),
        place=None,
        hints=Hint.NONE,
    )
    allocations = device.allocations
    recorded = np.flatnonzero(allocations.born >= 0)
    if not len(recorded):
        return stray
    view = attribute(trace, device)
    largest = allocations.largest_of(recorded)
    stack = int(allocations.stack[largest])
    return replace(
        stray,
        place=view.place_of_block(largest),
        hints=Hint.NONE if stack == NO_STACK else Hint(int(hints_of(trace.stacks)[stack])),
    )


def _process_bytes(trace: Trace, device: int) -> int | None:
    """All that this process has on a device; None where no driver was asked."""
    sizes = [
        size for kind, size in _ledger(trace, device) if kind.startswith(_KINDS_OF_THIS_PROCESS)
    ]
    return sum(sizes) if sizes else None


def _ledger(trace: Trace, device: int) -> tuple[tuple[str, int], ...]:
    ledger = None if trace.ledgers is None else trace.ledgers.end.get(device)
    return () if ledger is None else tuple((part.kind, part.bytes) for part in ledger.parts)


def _pinned_bytes(trace: Trace) -> int | None:
    host = {} if trace.ledgers is None else trace.ledgers.host.get("end", {})
    return host.get("pinned_reserved_bytes")


def _failure(view: Attribution) -> RankFailure | None:
    """The last request that failed; it ended the program if nothing was allocated after it."""
    device = view.device
    if not device.out_of_memory:
        return None
    failed_request = device.out_of_memory[-1]
    event = failed_request.event
    later_allocations = int((device.events.action[event + 1 :] == 0).sum())
    return RankFailure(
        time_us=int(device.events.time_us[event]) if event < len(device.events) else 0,
        step=int(view.steps.of(np.array([event]))[0]) if len(view.steps) else None,
        requested_bytes=failed_request.size_bytes,
        place=view.place_of_stack(failed_request.stack),
        died=later_allocations == 0 or view.trace.meta.trigger == "oom",
        at_own_limit=_is_at_own_limit(view),
    )


def _is_at_own_limit(view: Attribution) -> bool:
    """Whether the limit of the process refused the last request that failed."""
    outside = outside_of(view, message_for(view, ()))
    failure = failure_of(view, outside)
    return failure is not None and wall_of(failure, outside) == Wall.PROCESS_LIMIT
