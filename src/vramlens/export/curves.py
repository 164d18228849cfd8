"""Curves: the allocator's counters right after each event, as ``torch.cuda.memory_stats`` would
have told them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vramlens.trace import Counter, DeviceTrace


def curves_of(device: DeviceTrace) -> dict[str, NDArray[np.int64]]:
    """By counter its bytes after each event; active only where it ever differs from allocated.

    A block counts as allocated until the program gives it up and as active until its memory is free
    again (c10/cuda/CUDACachingAllocator.cpp: free, then free_block).
    """
    rows = device.allocations
    allocated = running(device, device.allocated, rows.free_requested, rows.taken_bytes)
    active = running(device, device.active, rows.died, rows.taken_bytes)
    curves = {"requested": device.requested_curve, "allocated": allocated}
    if len(active) and (
        device.active.base_bytes != device.allocated.base_bytes or bool((active != allocated).any())
    ):
        curves["active"] = active
    return curves | {"reserved": device.reserved_curve}


def running(
    device: DeviceTrace, counter: Counter, until: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """A counter after each event: each allocation counts from its birth until the event in
    ``until``.
    """
    born = device.allocations.born
    change = np.zeros(len(device.events) + 1, np.int64)  # one more: what never ends
    recorded, ends = born >= 0, until >= 0
    np.add.at(change, born[recorded], sizes[recorded])
    np.subtract.at(change, until[ends], sizes[ends])
    return np.asarray(counter.base_bytes + np.cumsum(change[:-1]))


def changes(curve: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places at which a curve takes another value; the first one always."""
    if not len(curve):
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.append(True, curve[1:] != curve[:-1]))
