"""Perfetto: the timeline in Perfetto's own trace format, for ui.perfetto.dev and its trace
processor.

Messages and field numbers are those of Perfetto's published schema
(protos/perfetto/trace/trace_packet.proto, track_event/track_descriptor.proto, track_event.proto,
counter_descriptor.proto, interned_data.proto).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

import numpy as np

from vramlens.export import wire
from vramlens.export.timeline import Series, Timeline
from vramlens.export.tracks import Span, Track

_SEQUENCE = 1
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_SLICE_BEGIN, _SLICE_END, _INSTANT, _COUNTER = 1, 2, 3, 4
_REALTIME, _BOOTTIME = 1, 6
_BYTES = 3
_EXPLICIT_ORDER = 3
_CHUNK = 1 << 16
_AXIS = "bytes"


def perfetto_chunks(timelines: Sequence[Timeline]) -> Iterator[bytes]:
    """The bytes of a trace, piece by piece: a group a device, with its counters and tracks below
    it.
    """
    start_us = timelines[0].clock.start_us if timelines else 0
    yield _packet(_clocks(start_us), flags=_STATE_CLEARED)
    names, tracks = _Names(), count(1)
    for timeline in timelines:
        group = next(tracks)
        yield _packet(_group(group, timeline.name))
        order = count(1)
        for series in timeline.counters:
            track = next(tracks)
            yield _packet(_track(track, group, f"{series.name} bytes", next(order), counter=True))
            yield from _counter(track, series)
        for drawn in (timeline.marks, *timeline.tracks):
            track = next(tracks)
            yield _packet(_track(track, group, drawn.name, next(order)))
            yield b"".join(_slices(track, drawn, names))
        last = next(order)
        for drawn in timeline.largest:  # of one name and one parent: drawn as one track with rows
            track = next(tracks)
            yield _packet(_track(track, group, drawn.name, last))
            yield b"".join(_slices(track, drawn, names))


class _Names:
    """Names and keys that are written once and referred to by number after that."""

    def __init__(self) -> None:
        self._events: dict[str, int] = {}
        self._keys: dict[str, int] = {}

    def event(self, name: str) -> tuple[int, bytes]:
        """The number of an event's name, and what to write the first time
        (InternedData.event_names).
        """
        return self._number(self._events, name, 2)

    def key(self, name: str) -> tuple[int, bytes]:
        """The number of a detail's name (InternedData.debug_annotation_names)."""
        return self._number(self._keys, name, 3)

    @staticmethod
    def _number(known: dict[str, int], name: str, field: int) -> tuple[int, bytes]:
        if name in known:
            return known[name], b""
        known[name] = len(known) + 1
        return known[name], wire.message(field, wire.number(1, known[name]), wire.text(2, name))


def _packet(*fields: bytes, time_ns: int | None = None, flags: int = 0) -> bytes:
    """A TracePacket in a Trace."""
    head = b"" if time_ns is None else wire.number(8, time_ns)
    return wire.message(
        1, head, wire.number(10, _SEQUENCE), wire.number(13, flags) if flags else b"", *fields
    )


def _clocks(start_us: int) -> bytes:
    """A ClockSnapshot: what the trace's time 0 is on the wall."""
    pairs = ((_BOOTTIME, 0), (_REALTIME, start_us * 1000))
    return wire.message(
        6, *(wire.message(1, wire.number(1, clock), wire.number(2, time)) for clock, time in pairs)
    )


def _group(track: int, name: str) -> bytes:
    """A TrackDescriptor that others are below, in the order that they say.

    It is not a process: those below a process are drawn in the order of their names, and a made-up
    process number would be taken for a real one where traces are merged.
    """
    return wire.message(
        60, wire.number(1, track), wire.text(2, name), wire.number(11, _EXPLICIT_ORDER)
    )


def _track(track: int, parent: int, name: str, order: int, *, counter: bool = False) -> bytes:
    """A TrackDescriptor below a group."""
    kind = wire.message(8, wire.number(3, _BYTES), wire.text(7, _AXIS)) if counter else b""
    return wire.message(
        60,
        wire.number(1, track),
        wire.text(2, name),
        wire.number(5, parent),
        kind,
        wire.number(12, order),
    )


def _counter(track: int, series: Series) -> Iterator[bytes]:
    """A packet a value; a million of them differ in two numbers, so they are laid out side by
    side.
    """
    for first in range(0, len(series.values), _CHUNK):
        times, values = (
            series.times_ns[first : first + _CHUNK],
            series.values[first : first + _CHUNK],
        )
        event = wire.rows(
            len(times), wire.number(9, _COUNTER) + wire.number(11, track) + wire.tag(30), values
        )
        head = wire.rows(len(times), wire.tag(8), times, wire.number(10, _SEQUENCE))
        body = wire.messages(11, *event)
        matrix, counts = wire.messages(
            1, np.hstack((head[0], body[0])), np.hstack((head[1], body[1]))
        )
        yield matrix[counts].tobytes()


def _slices(track: int, drawn: Track, names: _Names) -> Iterator[bytes]:
    """Begins and ends in the order of time, inner spans within outer ones; a span of no length
    is an instant.
    """
    where = wire.number(11, track)
    end_event = wire.message(11, wire.number(9, _SLICE_END), where)
    open_: list[int] = []
    for span in drawn.spans:
        while open_ and open_[-1] <= span.begin_ns:
            yield _packet(end_event, time_ns=open_.pop())
        instant = span.end_ns == span.begin_ns
        yield _begin(span, _INSTANT if instant else _SLICE_BEGIN, where, names)
        if not instant:
            open_.append(span.end_ns)
    while open_:
        yield _packet(end_event, time_ns=open_.pop())


def _begin(span: Span, kind: int, where: bytes, names: _Names) -> bytes:
    name, first_time = names.event(span.name)
    details, keys = _details(span.details, names)
    event = wire.message(11, wire.number(9, kind), where, wire.number(10, name), details)
    introduced = first_time + keys
    interned = wire.message(12, introduced) if introduced else b""
    return _packet(interned, event, time_ns=span.begin_ns, flags=_NEEDS_STATE)


def _details(details: Mapping[str, str | int], names: _Names) -> tuple[bytes, bytes]:
    """DebugAnnotations, and the names that they introduce."""
    annotations, introduced = [], []
    for key, value in details.items():
        number, first_time = names.key(key)
        annotation_value = wire.number(4, value) if isinstance(value, int) else wire.text(6, value)
        annotations.append(wire.message(4, wire.number(1, number), annotation_value))
        introduced.append(first_time)
    return b"".join(annotations), b"".join(introduced)
