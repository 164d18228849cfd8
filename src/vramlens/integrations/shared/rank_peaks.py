"""The peaks of all ranks, through the key-value store of the process group.

No collective is called: a rank that is late, or has ended, holds up nobody, and no byte is
allocated on a GPU. Each rank leaves its newest peak; rank 0 reads what is there.
"""

from __future__ import annotations

from vramlens.capture.process_group import initialized_group
from vramlens.capture.warn import harmless
from vramlens.units import GIB

_KEY = "vramlens/peak_bytes/"


@harmless("comparing the peaks of the ranks")
def peaks_of_ranks(peak_bytes: int | None) -> dict[str, float]:
    """Leaves this rank's peak, and gives on rank 0 the figures of all ranks; else {}.

    ``memory/rank_peak_max_gib``, ``memory/rank_peak_min_gib`` and ``memory/worst_rank``, once every
    rank has left one.
    """
    group = initialized_group()
    if group is None or peak_bytes is None:
        return {}
    rank, world_size = group.get_rank(), group.get_world_size()
    store = group.distributed_c10d._get_default_store()
    store.set(f"{_KEY}{rank}", str(peak_bytes))
    keys = [f"{_KEY}{number}" for number in range(world_size)]
    if rank or world_size < 2 or not store.check(keys):
        return {}
    peaks = [int(entry) for entry in store.multi_get(keys)]
    worst = max(range(world_size), key=peaks.__getitem__)
    return {
        "memory/rank_peak_max_gib": peaks[worst] / GIB,
        "memory/rank_peak_min_gib": min(peaks) / GIB,
        "memory/worst_rank": float(worst),
    }
