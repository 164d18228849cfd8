"""Reserved memory that the program's present work cannot use: other streams' caches and private
pools.
"""

from __future__ import annotations

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.finding import Finding
from vramlens.analyses.memory.fragmentation import Fragmentation
from vramlens.ground.verdict import Verdict
from vramlens.trace import Action
from vramlens.units import MIB, format_size

_LEAST_BYTES = 16 * MIB
_IDLE_SHARE = 0.5


def stranded_streams(view: Attribution, fragmentation: Fragmentation) -> list[Finding]:
    """Memory cached for streams that none of the later half of all requests was for."""
    events = view.device.events
    births = np.flatnonzero(events.action[: fragmentation.event + 1] == Action.ALLOC)
    if not len(births):
        return []
    later_half = int(births[int(len(births) * _IDLE_SHARE)])
    streams, last_of_reversed = np.unique(events.stream[births][::-1], return_index=True)
    last_use = dict(zip(streams.tolist(), births[::-1][last_of_reversed].tolist(), strict=True))
    idle = [
        pool
        for pool in fragmentation.by_pool
        if pool.pool in ("small", "large") and last_use.get(pool.stream, -1) < later_half
    ]
    held = sum(pool.free_bytes for pool in idle)
    if held < _LEAST_BYTES:
        return []
    names = sorted({pool.stream for pool in idle})
    count = "a stream" if len(names) == 1 else f"{len(names)} streams"
    return [
        Finding(
            id="stranded_streams",
            verdict=Verdict.PROVEN,
            title=f"{format_size(held)} are cached for {count} that the program no longer uses",
            bytes=held,
            evidence=tuple(
                f"stream {name:#x}: last request at event {last_use.get(name, -1):,} of {len(events):,}"
                if name in last_use
                else f"stream {name:#x}: no request since before the recording"
                for name in names[:4]
            ),
            fix="allocate on the stream that you go on using, or call torch.cuda.empty_cache() once after that "
            f"stream's work ({format_size(held)})",
        )
    ]


def private_pools(view: Attribution, fragmentation: Fragmentation) -> list[Finding]:
    """Memory of CUDA graphs and MemPools, which nothing else can use."""
    private = [pool for pool in fragmentation.by_pool if pool.pool not in ("small", "large")]
    reserved = sum(pool.reserved_bytes for pool in private)
    if reserved < _LEAST_BYTES:
        return []
    free = sum(pool.free_bytes for pool in private)
    names = sorted({pool.pool for pool in private})
    return [
        Finding(
            id="private_pools",
            verdict=Verdict.PROVEN,
            title=f"{format_size(reserved)} belong to private pools (CUDA graphs, MemPools); {format_size(free)} of it "
            "are free, but only for them",
            bytes=reserved,
            evidence=tuple(
                f"pool {name}: {format_size(sum(p.reserved_bytes for p in private if p.pool == name))} reserved"
                for name in names[:4]
            ),
            fix="capture fewer graph sizes, or let graphs that never run together share one pool "
            "(torch.cuda.graph(..., pool=...))",
        )
    ]
