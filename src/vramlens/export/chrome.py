"""Chrome: the timeline as Chrome's trace events, for chrome://tracing, ui.perfetto.dev and whatever
reads their JSON.

The events are those of the Trace Event Format: M names, C counters, X spans, i instants; times in
    microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from vramlens.export.timeline import Series, Timeline
from vramlens.export.tracks import Span

_CHUNK = 1 << 16
_BANDS, _LARGEST = 1, 1000
"""Threads: marks and bands count from one, the largest allocations from the other."""


def chrome_chunks(timelines: Sequence[Timeline]) -> Iterator[bytes]:
    """The bytes of a trace, piece by piece: a process a device."""
    yield b'{"displayTimeUnit":"ms","traceEvents":[\n'
    joint = ""
    for timeline in timelines:
        for piece in _events(timeline):
            yield (joint + piece).encode()
            joint = ",\n"
    start_us = timelines[0].clock.start_us if timelines else 0
    notes = [note for timeline in timelines for note in timeline.notes]
    yield f'\n],"otherData":{json.dumps({"start_us": start_us, "notes": notes})}}}\n'.encode()


def _events(timeline: Timeline) -> Iterator[str]:
    """Runs of events, as JSON with commas between them."""
    process = timeline.device + 1
    yield _named("process_name", process, 0, timeline.name)
    for series in timeline.counters:
        yield from _counter(process, series)
    for thread, track in enumerate((timeline.marks, *timeline.tracks), _BANDS):
        yield _named("thread_name", process, thread, track.name)
        if track.spans:
            yield ",\n".join(_span(process, thread, span) for span in track.spans)
    for thread, track in enumerate(timeline.largest, _LARGEST):
        yield _named("thread_name", process, thread, track.name)
        yield ",\n".join(_span(process, thread, span) for span in track.spans)


def _named(what: str, process: int, thread: int, name: str) -> str:
    return f'{{"ph":"M","name":"{what}","pid":{process},"tid":{thread},"args":{{"name":{json.dumps(name)}}}}}'


def _counter(process: int, series: Series) -> Iterator[str]:
    """One counter an event: several in one are drawn on top of each other, as if they were to be
    added.
    """
    head = f'{{"ph":"C","pid":{process},"name":{json.dumps(series.name)},"ts":'
    for first in range(0, len(series.values), _CHUNK):
        times = (series.times_ns[first : first + _CHUNK] / 1000).tolist()
        values = series.values[first : first + _CHUNK].tolist()
        yield ",\n".join(
            [
                f'{head}{time},"args":{{"bytes":{value}}}}}'
                for time, value in zip(times, values, strict=True)
            ]
        )


def _span(process: int, thread: int, span: Span) -> str:
    event = {"pid": process, "tid": thread, "ts": span.begin_ns / 1000, "name": span.name}
    if span.end_ns == span.begin_ns:
        event |= {"ph": "i", "s": "p"}
    else:
        event |= {"ph": "X", "dur": (span.end_ns - span.begin_ns) / 1000}
    if span.details:
        event["args"] = span.details
    return json.dumps(event, separators=(",", ":"))
