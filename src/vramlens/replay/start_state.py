"""What was there when recording began, as a ``.vram`` file may hold it: for recordings that
began in mid-run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vramlens.trace import DeviceTrace, Trace


@dataclass(frozen=True, eq=False)
class StartState:
    """One device's memory right before the first event.

    Attributes:
        taken_bytes: of each early allocation (the first rows of ``DeviceTrace.allocations``), what
            its block takes.
        pool_of_segment: of each early segment, by row, its pool's pair of ids.
    """

    taken_bytes: NDArray[np.int64]
    pool_of_segment: dict[int, tuple[int, int]]


def start_state_of(trace: Trace, device: DeviceTrace) -> StartState | None:
    """The state when recording began; None where there is none, or events between it and the
    first are gone.
    """
    start = trace.start
    before = start.devices.get(device.device) if start is not None else None
    if start is None or before is None:
        return None
    blocks, rows = before.allocations, device.allocations
    early = np.flatnonzero(rows.born < 0)
    order = np.argsort(blocks.address, kind="stable")
    if len(order) != len(early) or len(np.unique(blocks.address)) != len(order):
        return None
    by_address = early[np.argsort(rows.address[early], kind="stable")]
    is_same_block = blocks.address[order] == rows.address[by_address]
    is_same_block &= blocks.requested_bytes[order] == rows.requested_bytes[by_address]
    if not is_same_block.all():
        return None
    taken = np.zeros(len(early), np.int64)
    taken[np.searchsorted(early, by_address)] = blocks.taken_bytes[order]
    return StartState(taken, _pools(start, before, device))


def _pools(start: Trace, before: DeviceTrace, device: DeviceTrace) -> dict[int, tuple[int, int]]:
    """The pool of each early segment: that of the segment of the state in which it lies."""
    segments = before.segments
    order = np.argsort(segments.address, kind="stable")
    sorted_address = segments.address[order]
    pool_of_segment = {}
    for row in np.flatnonzero(device.segments.born < 0).tolist():
        address = device.segments.address[row]
        at = int(np.searchsorted(sorted_address, address, side="right")) - 1
        if at < 0:
            continue
        holder = int(order[at])
        inside = int(address) < int(segments.address[holder]) + int(segments.size_bytes[holder])
        pool = int(segments.pool[holder])
        if inside and pool < len(start.pools):
            pool_of_segment[row] = (int(start.pools[pool][0]), int(start.pools[pool][1]))
    return pool_of_segment
