"""One track of a page: a device of a recording, as columns and tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category, Certainty
from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.failure.step_evidence import are_steps
from vramlens.trace import NO_STACK
from vramlens.view.columns import Columns
from vramlens.view.sources import Sources
from vramlens.view.texts import Texts
from vramlens.view.timeline.bands import bands_of
from vramlens.view.timeline.collective_calls import Problems, RankFlight, collectives_of


def track_of(
    view: Attribution,
    columns: Columns,
    sources: Sources | None,
    flight: RankFlight | None = None,
    problems: Problems | None = None,
) -> dict[str, Any]:
    """The header of one device's track; what is long goes into columns, and the header has their
    numbers.
    """
    device, trace, texts = view.device, view.trace, Texts()
    frames = _frames(view, columns, texts)
    lines, line_of_row = _lines(view, texts)
    clock = device.clock_us
    start_us = int(clock[0]) if len(clock) else 0
    return {
        "device": device.device,
        "events": len(device.events),
        "start_us": start_us,
        "timed": device.is_timed,
        "clock": columns.add(clock - start_us, differences=True),
        "counters": {
            name: [counter.base_bytes, counter.peak_bytes, counter.peak_event]
            for name, counter in (
                ("requested", device.requested),
                ("allocated", device.allocated),
                ("active", device.active),
                ("reserved", device.reserved),
            )
        },
        "rows": _rows(view, columns, line_of_row, texts),
        "segments": _segments(view, columns),
        "failures": [
            {
                "event": failure.event,
                "bytes": failure.size_bytes,
                "free": failure.device_free_bytes,
                "stack": _stack(failure.stack),
            }
            for failure in device.out_of_memory
        ],
        "steps": {
            "source": view.steps.source,
            "name": "step" if are_steps(view) else "cycle",
            "starts": columns.add(view.steps.starts, differences=True),
        },
        "bands": bands_of(trace, device, start_us, columns, texts),
        "collectives": collectives_of(
            trace, device, start_us, flight, problems or {}, columns, texts
        ),
        "frames": frames,
        "lines": lines,
        "categories": [kind.name.lower() for kind in Category],
        "certainties": [kind.name.lower() for kind in Certainty],
        "phases": [kind.name.lower() for kind in Phase],
        "modules": [texts.number(path) for path in view.modules.paths],
        "pools": [[int(a), int(b)] for a, b in trace.pools.tolist()],
        "sources": _sources(view, sources),
        "texts": texts.all,
    }


def _stack(stack: int) -> int:
    """A stack as the page numbers it: 0 is none."""
    return 0 if stack == NO_STACK else stack + 1


def _rows(
    view: Attribution, columns: Columns, line: NDArray[np.int64], texts: Texts
) -> dict[str, Any]:
    """The allocations. An id that may be absent is one more than it is here; 0 is none."""
    rows = view.device.allocations
    events = len(view.device.events)
    base = int(rows.address.min()) if len(rows) else 0
    streams, stream = _numbered(rows.stream)
    freed = np.minimum(rows.free_requested, rows.died)
    names, name = _names(view, texts)
    return {
        "n": len(rows),
        "base": str(base),
        "streams": [str(int(pointer)) for pointer in streams.tolist()],
        "names": names,
        "born": columns.add(rows.born + 1, differences=True),
        "kept": columns.add(freed - rows.born),
        "pending": columns.add(np.minimum(rows.died, events) - freed),
        "address": columns.add(rows.address - np.uint64(base)),
        "bytes": columns.add(rows.requested_bytes),
        "slack": columns.add(np.maximum(rows.taken_bytes - rows.requested_bytes, 0)),
        "stack": columns.add(_shifted(rows.stack)),
        "segment": columns.add(_shifted(rows.segment)),
        "pool": columns.add(_shifted(rows.pool)),
        "stream": columns.add(stream),
        "line": columns.add(line),
        "inferred": columns.add(view.phases.inferred.astype(np.uint8)),
        "category": columns.add(view.categories.category),
        "certainty": columns.add(view.categories.certainty),
        "phase": columns.add(view.phases.phase),
        "module": columns.add(view.modules.module + 1),
        "name": columns.add(name),
    }


def _numbered(values: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The distinct values, and by row which of them it is; most recordings know one stream."""
    if len(values) and (values == values[0]).all():
        return values[:1], np.zeros(len(values), np.int64)
    distinct, index_of_row = np.unique(values, return_inverse=True)
    return distinct, index_of_row.reshape(-1)


def _shifted(ids: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Ids plus one; 0 for none, which is the largest number."""
    return ids + np.uint32(1)


def _names(view: Attribution, texts: Texts) -> tuple[list[int], NDArray[np.int64]]:
    names, row = view.names.tensors.name, view.names.row
    used, where = np.unique(row, return_inverse=True)
    numbers = [texts.number(names[named_row]) for named_row in used.tolist() if named_row >= 0]
    return numbers, where.reshape(-1) + (0 if len(used) and used[0] < 0 else 1)


def _segments(view: Attribution, columns: Columns) -> dict[str, Any]:
    segments, events = view.device.segments, view.device.events
    base = int(segments.address.min()) if len(segments) else 0
    is_recorded = segments.born >= 0
    stack = np.zeros(len(segments), np.uint32)
    stack[is_recorded] = _shifted(events.stack[segments.born[is_recorded]])
    return {
        "n": len(segments),
        "base": str(base),
        "streams": [str(int(pointer)) for pointer in segments.stream.tolist()],
        "born": columns.add(segments.born + 1),
        "died": columns.add(np.minimum(segments.died, len(events))),
        "address": columns.add(segments.address - np.uint64(base)),
        "bytes": columns.add(segments.size_bytes),
        "expandable": columns.add(segments.expandable),
        "pool": columns.add(_shifted(segments.pool)),
        "stack": columns.add(stack),
    }


def _frames(view: Attribution, columns: Columns, texts: Texts) -> dict[str, int]:
    """The stacks that allocations and failures have, and their frames.

    A frame's kind is 0 for PyTorch's plumbing, 1 for a library's code, 2 for the user's own; a
    stack's code is the innermost frame that is not plumbing, plus one.
    """
    stacks = view.trace.stacks
    files = {i: texts.number(stacks.strings[i]) for i in np.unique(stacks.frame_file).tolist()}
    functions = {
        i: texts.number(stacks.strings[i]) for i in np.unique(stacks.frame_function).tolist()
    }
    return {
        "file": columns.add(np.array([files[i] for i in stacks.frame_file.tolist()], np.int64)),
        "function": columns.add(
            np.array([functions[i] for i in stacks.frame_function.tolist()], np.int64)
        ),
        "line": columns.add(np.maximum(stacks.frame_line, 0)),
        "kind": columns.add(stacks.code_frames.astype(np.uint8) + stacks.user_frames),
        "code": columns.add(stacks.code_frame + 1),
        "of_stacks": columns.add(stacks.frames),
        "starts": columns.add(stacks.starts, differences=True),
    }


def _lines(view: Attribution, texts: Texts) -> tuple[list[list[int]], NDArray[np.int64]]:
    """The user's lines as [file, line, function], and by allocation the line's number plus one."""
    frames = view.phases.frame
    places: dict[tuple[int, int, int], int] = {}
    # The last is for -1: no frame.
    number = np.zeros(len(view.trace.stacks.frame_line) + 1, np.int64)
    for frame in np.flatnonzero(np.bincount(frames[frames >= 0])).tolist():
        place = view.place(frame)
        if place is not None:
            key = (texts.number(place.file), max(place.line, 0), texts.number(place.function))
            number[frame] = places.setdefault(key, len(places)) + 1
    return [list(place) for place in places], number[frames]


def _sources(view: Attribution, sources: Sources | None) -> dict[str, Any]:
    """The code around the user's lines, those that hold most first."""
    if sources is None:
        return {}
    stacks = view.trace.stacks
    weight = np.zeros(len(stacks.frame_line), np.int64)
    has_frame = view.phases.frame >= 0
    np.add.at(
        weight, view.phases.frame[has_frame], view.device.allocations.requested_bytes[has_frame]
    )
    user_frames = np.flatnonzero(stacks.user_frames)
    ordered = user_frames[np.argsort(-weight[user_frames], kind="stable")]
    return sources.around(stacks.frame(frame) for frame in ordered.tolist())
