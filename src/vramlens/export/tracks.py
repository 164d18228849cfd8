"""Tracks: spans of time put on as few lines as a timeline needs to draw them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

MOST_TRACKS = 32
"""Spans that cross (those of several threads may) need a track each; more than these are left
out, and counted.
"""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time with a name.

    Attributes:
        begin_ns, end_ns: since the recording's first event.
        name: one line of text.
        details: what else there is to know, by name.
    """

    begin_ns: int
    end_ns: int
    name: str
    details: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Track:
    """One line of a timeline: spans in the order in which they begin, the outer before the
    inner.
    """

    name: str
    spans: tuple[Span, ...]


def nested(name: str, spans: Iterable[Span]) -> tuple[tuple[Track, ...], int]:
    """Tracks on which spans lie inside each other or apart, and how many spans found no room on
    MOST_TRACKS.
    """
    tracks: list[list[Span]] = []
    open_: list[list[int]] = []  # by track, the ends of the spans that are open, the innermost last
    left_out = 0
    for span in sorted(spans, key=lambda one: (one.begin_ns, -one.end_ns)):
        for track, ends in zip(tracks, open_, strict=True):
            while ends and ends[-1] <= span.begin_ns:
                ends.pop()
            if not ends or span.end_ns <= ends[-1]:
                track.append(span)
                ends.append(span.end_ns)
                break
        else:
            if len(tracks) == MOST_TRACKS:
                left_out += 1
                continue
            tracks.append([span])
            open_.append([span.end_ns])
    return tuple(Track(name, tuple(track)) for track in tracks), left_out


def side_by_side(name: str, spans: Sequence[Span]) -> tuple[Track, ...]:
    """Tracks on which no two spans overlap, as few as there can be."""
    tracks: list[list[Span]] = []
    free: list[int] = []  # tracks that are free, the uppermost first
    busy: list[tuple[int, int]] = []  # when each other one is free again
    for span in sorted(spans, key=lambda one: (one.begin_ns, one.end_ns)):
        while busy and busy[0][0] <= span.begin_ns:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            free.append(len(tracks))
            tracks.append([])
        track = heapq.heappop(free)
        tracks[track].append(span)
        heapq.heappush(busy, (span.end_ns, track))
    return tuple(Track(name, tuple(track)) for track in tracks)
