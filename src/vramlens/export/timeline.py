"""Timeline: a device's counters, spans and marks as every trace viewer draws them, before any
file format.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.modules import OUTSIDE
from vramlens.analyses.attribution.phases import Phase
from vramlens.export.clock import Clock, clock_of
from vramlens.export.curves import changes, curves_of
from vramlens.export.stack_bytes import short_name
from vramlens.export.tracks import Span, Track, nested, side_by_side
from vramlens.report.wording import place_name, short_place_name
from vramlens.trace import NO_STACK, Frame, Trace
from vramlens.units import counted, format_size

LARGEST = 1000
"""So many allocations are drawn as spans of their own, the largest; the counters are of all of
them.
"""
_LONGEST_NAME = 300
_MOST_FRAMES = 100


@dataclass(frozen=True, eq=False)
class Series:
    """A counter: its bytes at the times at which it changed."""

    name: str
    times_ns: NDArray[np.int64]
    values: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Timeline:
    """One device.

    Attributes:
        device: its index.
        name: ``GPU 0 (NVIDIA H200)``.
        clock: when its events happened.
        counters: requested, allocated, (active,) reserved.
        tracks: steps, phases and regions.
        marks: the peak, failed requests and what the recording lacks; each begins where it ends.
        largest: the largest allocations, each from its birth to its end.
        notes: what is reduced or unknown, one sentence each.
    """

    device: int
    name: str
    clock: Clock
    counters: tuple[Series, ...]
    tracks: tuple[Track, ...]
    marks: Track
    largest: tuple[Track, ...]
    notes: tuple[str, ...]


def timeline_of(view: Attribution, start_us: int) -> Timeline:
    """The timeline of a device; its time 0 is ``start_us``, in microseconds since the epoch."""
    device, trace = view.device, view.trace
    clock = clock_of(device, start_us)
    regions, left_out = nested("regions", _regions(view, clock))
    steps = Track(f"steps ({view.steps.source})", _steps(view, clock))
    phases = Track("phases", _phases(view, clock))
    bands = tuple(track for track in (steps, phases, *regions) if track.spans)
    rows = _largest(view)
    return Timeline(
        device=device.device,
        name=device_name(trace, device.device),
        clock=clock,
        counters=_counters(view, clock),
        tracks=bands,
        marks=Track("peak and failures", _marks(view, clock)),
        largest=side_by_side(
            "largest allocations", [_allocation(view, clock, row) for row in rows.tolist()]
        ),
        notes=tuple(_notes(view, clock, left_out, len(rows))),
    )


def _notes(view: Attribution, clock: Clock, left_out: int, drawn: int) -> Iterator[str]:
    """Yields what is reduced or unknown, one sentence each."""
    device = view.device
    if len(device.events) and not clock.timed:
        yield f"GPU {device.device}: no times in the recording: each event is drawn as 1 us"
    if left_out:
        regions = counted(left_out, "region")
        yield f"GPU {device.device}: {regions} that cross others not drawn"
    if drawn < len(device.allocations):
        all_of = counted(len(device.allocations), "allocation")
        yield (
            f"GPU {device.device}: the {drawn:,} largest of {all_of} as spans;"
            " the counters include all of them"
        )


def device_name(trace: Trace, device: int) -> str:
    """``GPU 0 (NVIDIA H200)``, with the rank where the recording says it."""
    model, rank = trace.meta.device(device).name or trace.device_name, trace.meta.rank
    facts = [_name(model)] if model else []
    if rank is not None:
        facts.append(f"rank {rank}")
    return f"GPU {device} ({', '.join(facts)})" if facts else f"GPU {device}"


def stack_text(view: Attribution, stack: int) -> str:
    """A stack as text, innermost frame first, a frame a line; "" without one, the inner ones of
    a very deep one.
    """
    stacks = view.trace.stacks
    if stack == NO_STACK:
        return ""
    frames = stacks.frames[stacks.starts[stack] : stacks.starts[stack + 1]]
    inner_frames = [stacks.frame(frame) for frame in frames[:_MOST_FRAMES].tolist()]
    lines = [
        place_name(Frame(_name(frame.file), frame.line, _name(frame.function)))
        for frame in inner_frames
    ]
    return "\n".join(
        lines
        if len(frames) <= _MOST_FRAMES
        else [*lines, f"… and {len(frames) - _MOST_FRAMES:,} more"]
    )


def _name(text: str) -> str:
    return short_name(text, _LONGEST_NAME)


def _counters(view: Attribution, clock: Clock) -> tuple[Series, ...]:
    """The curves, each from what the counter was before the first event."""
    counters = []
    times_ns = np.append(np.int64(0), clock.events_ns)
    for name, curve in curves_of(view.device).items():
        values = np.append(np.int64(getattr(view.device, name).base_bytes), curve)
        places = changes(values)
        counters.append(Series(name, times_ns[places], values[places]))
    return tuple(counters)


def _steps(view: Attribution, clock: Clock) -> tuple[Span, ...]:
    begins = clock.at(view.steps.starts).tolist()
    ends = clock.at(view.steps.ends).tolist()
    return tuple(
        Span(begin, end, f"step {number}")
        for number, (begin, end) in enumerate(zip(begins, ends, strict=True))
    )


def _phases(view: Attribution, clock: Clock) -> tuple[Span, ...]:
    """Runs of allocations in one phase, each until the next begins."""
    born = view.device.allocations.born
    rows = np.flatnonzero(born >= 0)
    rows = rows[np.argsort(born[rows], kind="stable")]
    if not len(rows):
        return ()
    phase = view.phases.phase[rows]
    first = np.flatnonzero(np.append(True, phase[1:] != phase[:-1]))
    begins = clock.at(born[rows[first]])
    ends = np.append(begins[1:], clock.end_ns)
    return tuple(
        Span(begin, end, Phase(kind).name.lower())
        for begin, end, kind in zip(
            begins.tolist(), ends.tolist(), phase[first].tolist(), strict=True
        )
        if kind not in (Phase.UNKNOWN, Phase.OTHER)
    )


def _regions(view: Attribution, clock: Clock) -> list[Span]:
    """What ``record_function`` and PyTorch itself marked; what never ended ends with the
    recording.
    """
    notes = view.trace.annotations
    rows = np.flatnonzero(np.isin(notes.device, (view.device.device, -1)))
    if not clock.timed or not len(rows):
        return []
    rows = rows[np.argsort(notes.time_us[rows], kind="stable")]
    names = {
        text: _name(view.trace.stacks.strings[text])
        for text in np.unique(notes.name[rows]).tolist()
    }
    open_: dict[int, list[int]] = defaultdict(list)
    spans = []
    times = clock.of_us(notes.time_us[rows]).tolist()
    for time, name, starts in zip(
        times, notes.name[rows].tolist(), notes.starts[rows].tolist(), strict=True
    ):
        if starts:
            open_[name].append(time)
        elif open_[
            name
        ]:  # the latest of that name; an end without a beginning is of one before the recording
            spans.append(Span(open_[name].pop(), time, names[name]))
    spans += [
        Span(begin, clock.end_ns, names[name]) for name, begins in open_.items() for begin in begins
    ]
    return spans


def _marks(view: Attribution, clock: Clock) -> tuple[Span, ...]:
    device = view.device
    marks = [Span(0, 0, _name(f"incomplete: {sentence}")) for sentence in view.trace.missing]
    peak = device.requested
    at = int(clock.at(np.array([peak.peak_event]))[0])
    facts = {"requested bytes": peak.peak_bytes, "event": peak.peak_event}
    marks.append(Span(at, at, f"peak: {format_size(peak.peak_bytes)} requested", facts))
    for failure in device.out_of_memory:
        at = int(clock.at(np.array([failure.event]))[0])
        place = view.place_of_stack(failure.stack)
        where = f" at {short_place_name(place)}" if place is not None else ""
        details: dict[str, str | int] = {"bytes": failure.size_bytes, "event": failure.event}
        stack = stack_text(view, failure.stack)
        if stack:
            details["stack"] = stack
        marks.append(
            Span(at, at, _name(f"out of memory: {format_size(failure.size_bytes)}{where}"), details)
        )
    return tuple(sorted(marks, key=lambda span: span.begin_ns))


def _largest(view: Attribution) -> NDArray[np.int64]:
    sizes = view.device.allocations.requested_bytes
    return (
        np.arange(len(sizes))
        if len(sizes) <= LARGEST
        else np.argsort(-sizes, kind="stable")[:LARGEST]
    )


def _allocation(view: Attribution, clock: Clock, row: int) -> Span:
    rows = view.device.allocations
    begin, end = clock.at(np.array([rows.born[row], rows.died[row]])).tolist()
    size = int(rows.requested_bytes[row])
    details: dict[str, str | int] = {
        "bytes": size,
        "category": Category(int(view.categories.category[row])).name.lower(),
        "phase": Phase(int(view.phases.phase[row])).name.lower(),
        "born": int(rows.born[row]),
        "died": int(rows.died[row]),
        "address": f"0x{int(rows.address[row]):x}",
        "stream": int(rows.stream[row]),
    }
    place = view.place_of_block(row)
    label = short_place_name(place) if place is not None else ""
    if place is not None:
        details["line"] = place_name(place) + (
            " (likely: its backward pass)" if view.phases.inferred[row] else ""
        )
    named = view.names.name(row)
    if named:
        label = details["name"] = _name(named)
    if view.step[row] >= 0:
        details["step"] = int(view.step[row])
    if view.modules.module[row] != OUTSIDE:
        details["module"] = _name(view.modules.paths[int(view.modules.module[row])])
    stack = stack_text(view, int(rows.stack[row]))
    if stack:
        details["stack"] = stack
    return Span(begin, end, _name(f"{format_size(size)} {label or details['category']}"), details)
