"""The requests of a compiled program: what is fused is never asked for, and what it is made again of
lives until nobody reads it.

A result that the backward reads is either kept or made again of what is kept
(torch/_functorch/partitioners.py, min_cut_rematerialization_partition): here all are made again, of
the nearest results that are there.
"""

from __future__ import annotations

from vramlens.prediction.requests.request_log import FREE, RequestLog

_NEVER_MADE = 1
"""Bytes of what is fused: the smallest request."""


def as_compiled(log: RequestLog) -> RequestLog:
    """The requests without those that are fused, and their sources freed after them."""
    if not log.fused_from:
        return log
    freed = {row: place for place, (kind, row) in enumerate(log.events) if kind == FREE}
    last_reads: dict[int, int] = {}
    for row, sources in _sources_of(log).items():
        place = freed.get(row)
        for source in sources if place is not None else ():
            last_reads[source] = max(last_reads.get(source, 0), place or 0)

    def place_of(numbered: tuple[int, tuple[int, int]]) -> float:
        place, (kind, row) = numbered
        return max(place, last_reads.get(row, 0) + 0.5) if kind == FREE else place

    compiled = log.plain()
    compiled.events = [event for _, event in sorted(enumerate(log.events), key=place_of)]
    for row in log.fused_from:
        compiled.sizes[row] = _NEVER_MADE
    return compiled


def _sources_of(log: RequestLog) -> dict[int, frozenset[int]]:
    """The rows that are there, of which each fused one is made; an older row is a source of a
    younger one only.
    """
    sources: dict[int, frozenset[int]] = {}
    for row in sorted(log.fused_from):
        parents = (parent for parent in log.fused_from[row] if parent < row)
        sources[row] = frozenset().union(
            *(sources.get(parent, frozenset((parent,))) for parent in parents)
        )
    return sources
