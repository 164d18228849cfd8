"""The same with memory that another stream used coming free only when the host waits for the card.

c10/cuda/CUDACachingAllocator.cpp (``free``, ``insert_events``, ``process_events``): a block that
``record_stream`` marked is kept back until the work is done that its other streams were given before
the free. Nobody knows how far the host is ahead of that: the block may come free at once, or only
where the host waits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from vramlens.prediction.requests.request_log import COMPLETE, FREE, RequestLog


def with_late_completions(log: RequestLog) -> Iterator[RequestLog]:
    """The requests with such memory kept back as long as it may be; nothing without any."""
    if not log.used_aside:
        return
    completions = [
        (_next_wait(log, place), (COMPLETE, row))
        for place, (kind, row) in enumerate(log.events)
        if kind == FREE and row in log.used_aside
    ]
    numbered = [*enumerate(log.events), *completions]
    late = log.plain()
    late.events = [event for _, event in sorted(numbered, key=lambda pair: pair[0])]
    yield late


def _next_wait(log: RequestLog, place: int) -> float:
    """Where the host next waits after an event: between two events, or after the last."""
    number = bisect_right(log.waited_at, place)
    is_last = number == len(log.waited_at)
    return (len(log.events) if is_last else log.waited_at[number]) - 0.5
