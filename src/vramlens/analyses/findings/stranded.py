"""Reserved memory that the program's present work cannot use: other streams' caches and private
pools.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.analyses.memory.fragmentation import free_ranges, pool_rows
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.trace import Action
from vramlens.units import MIB, format_size

_LEAST_BYTES = 16 * MIB
_IDLE_SHARE = 0.5
_MOST_NAMES = 4
_DEFAULT_POOLS = ("small", "large")


def stranded_streams(scene: Scene) -> Iterator[Finding]:
    """Memory cached for streams that none of the later half of all requests was for."""
    events, fragmentation = scene.device.events, scene.last_fragmentation
    births = np.flatnonzero(events.action[: fragmentation.event + 1] == Action.ALLOC)
    if not len(births):
        return
    later_half = int(births[int(len(births) * _IDLE_SHARE)])
    latest_first = births[::-1]
    streams_of_run, latest = np.unique(events.stream[latest_first], return_index=True)
    last_requests = dict(zip(streams_of_run.tolist(), latest_first[latest].tolist(), strict=True))
    idle = [
        pool
        for pool in fragmentation.by_pool
        if pool.pool in _DEFAULT_POOLS and last_requests.get(pool.stream, -1) < later_half
    ]
    cached = sum(pool.free_bytes for pool in idle)
    if cached < _LEAST_BYTES:
        return
    streams = sorted({pool.stream for pool in idle})
    count = "a stream" if len(streams) == 1 else f"{len(streams)} streams"
    yield Finding(
        id="stranded_streams",
        verdict=Verdict.PROVEN,
        title=f"{format_size(cached)} are cached for {count} that the program no longer uses",
        bytes=cached,
        evidence=tuple(
            _last_request(stream, last_requests.get(stream), len(events))
            for stream in streams[:_MOST_NAMES]
        ),
        fix="allocate on a stream that stays in use, or call torch.cuda.empty_cache() once "
        f"after that stream's work ({format_size(cached)})",
        extent=Extent(
            fragmentation.event, holes=free_ranges(scene.view, fragmentation.event, idle)
        ),
    )


def _last_request(stream: int, event: int | None, events: int) -> str:
    if event is None:
        return f"stream {stream:#x}: no request since recording began"
    return f"stream {stream:#x}: last request at event {event:,} of {events:,}"


def private_pools(scene: Scene) -> Iterator[Finding]:
    """Memory of CUDA graphs and MemPools, which nothing else can use."""
    private = [pool for pool in scene.fragmentation.by_pool if pool.pool not in _DEFAULT_POOLS]
    reserved = sum(pool.reserved_bytes for pool in private)
    if reserved < _LEAST_BYTES:
        return
    free = sum(pool.free_bytes for pool in private)
    reserved_by_name: dict[str, int] = {}
    for pool in private:
        reserved_by_name[pool.pool] = reserved_by_name.get(pool.pool, 0) + pool.reserved_bytes
    yield Finding(
        id="private_pools",
        verdict=Verdict.PROVEN,
        title=f"{format_size(reserved)} belong to private pools (CUDA graphs, MemPools); "
        f"{format_size(free)} of that are free, but only these pools can use it",
        bytes=reserved,
        evidence=tuple(
            f"pool {name}: {format_size(size_bytes)} reserved"
            for name, size_bytes in sorted(reserved_by_name.items())[:_MOST_NAMES]
        ),
        fix="capture fewer graph sizes, or let graphs that never run together share one pool "
        "(torch.cuda.graph(..., pool=...))",
        extent=Extent(
            scene.fragmentation.event,
            rows=pool_rows(scene.view, scene.fragmentation.event, private),
            holes=free_ranges(scene.view, scene.fragmentation.event, private),
        ),
    )
