"""The requests of a compiled program: what is fused is never asked for, and what it is made again of
lives until nobody reads it.

A result that the backward reads is either kept or made again of what is kept
(torch/_functorch/partitioners.py, min_cut_rematerialization_partition): here all are made again, of
the nearest results that are there.
"""

from __future__ import annotations

from vramlens.prediction.requests.request_log import ALLOCATE, FREE, RequestLog

_NEVER_MADE = 1
"""Bytes of what is fused: the smallest request."""


def as_compiled(log: RequestLog) -> RequestLog:
    """The requests without those that are fused, and their sources freed after them."""
    if not log.fused_from:
        return log
    compiled = log.with_later_frees(_last_reads(log))
    for row in log.fused_from:
        compiled.sizes[row] = _NEVER_MADE
    return _with_memory_used_again(compiled)


def _last_reads(log: RequestLog) -> dict[int, int]:
    """The event after which what is fused no longer reads each row that is there."""
    freed = _frees(log)
    last_reads: dict[int, int] = {}
    for row, sources in _sources_of(log).items():
        if row not in log.fused_from or row not in freed:
            continue
        for source in sources:
            last_reads[source] = max(last_reads.get(source, 0), freed[row])
    return last_reads


def _with_memory_used_again(log: RequestLog) -> RequestLog:
    """The requests where a fused kernel writes its result over a tensor of the same size that
    nobody reads any more (torch/_inductor/scheduler.py, decide_inplace_update; the backward may
    write over what the forward kept for it: donated_buffer in torch/_functorch/config.py).
    """
    owners = _owners(log)
    freed = _frees(log)
    used_again = log.with_later_frees({owner: freed[row] for row, owner in owners.items()})
    for row in owners:
        used_again.sizes[row] = _NEVER_MADE
    return used_again


def _owners(log: RequestLog) -> dict[int, int]:
    """The rows that lie in the memory of an older one, each with the row that was requested."""
    freed, sources = _frees(log), _sources_of(log)
    requests = [
        place
        for place, (kind, row) in enumerate(log.events)
        if kind == ALLOCATE and log.sizes[row] > _NEVER_MADE
    ]
    written = log.written_by_fusion.keys() & freed.keys()
    owners: dict[int, int] = {}
    written_over: set[int] = set()
    ends = [*requests[1:], len(log.events)]
    for place, until in zip(requests, ends, strict=True):
        row = log.events[place][1]
        if row not in written:
            continue
        alike = _rows_of_size(log, sources[row] - written_over, log.sizes[row])
        dying = [source for source in alike if place < freed.get(source, until) < until]
        if dying:
            written_over.add(dying[0])
            owners[row] = owners.get(dying[0], dying[0])
    return owners


def _rows_of_size(log: RequestLog, rows: frozenset[int], size: int) -> list[int]:
    return [row for row in rows if log.sizes[row] == size]


def _frees(log: RequestLog) -> dict[int, int]:
    """The event in which each row is freed."""
    return {row: place for place, (kind, row) in enumerate(log.events) if kind == FREE}


def _sources_of(log: RequestLog) -> dict[int, frozenset[int]]:
    """The rows that are there, of which each fused one is made; an older row is a source of a
    younger one only.
    """
    sources: dict[int, frozenset[int]] = {}
    for row in sorted({*log.fused_from, *log.written_by_fusion}):
        parents = (parent for parent in log.fusible_sources(row) if parent < row)
        sources[row] = frozenset().union(
            *(
                sources[parent] if parent in log.fused_from else frozenset((parent,))
                for parent in parents
            )
        )
    return sources
