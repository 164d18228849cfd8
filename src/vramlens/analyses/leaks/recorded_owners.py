"""Owners: what keeps a leak, where the recording holds what was seen in the process."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.trace import NO_OWNER
from vramlens.trace.storage_facts import KeptBy

_MOST = 0.5
"""An owner of so much of what was found of a leak is the leak's."""
_FEWEST_FOUND = 0.2
"""And so much of the leak's bytes must have been found."""


def owner_of(view: Attribution, rows: NDArray[np.int64]) -> KeptBy | None:
    """What keeps most of some allocations; None where the recording does not say.

    A storage begins where its block does, or inside of it. The search may have run before or after
    the moment that leaks are judged at: only blocks that were alive when it ran are joined.
    """
    table, device = view.trace.owners, view.device
    if table is None or not len(table) or not len(rows):
        return None
    named_rows = np.flatnonzero((table.device == device.device) & (table.owner != NO_OWNER))
    if not len(named_rows):
        return None
    allocations = device.allocations
    event = _event(view, table.time_us)
    rows = rows[(allocations.born[rows] <= event) & (allocations.free_requested[rows] > event)]
    order = rows[np.argsort(allocations.address[rows], kind="stable")]
    if not len(order):
        return None
    address, size = allocations.address[order], allocations.taken_bytes[order]
    place = np.searchsorted(address, table.address[named_rows], side="right") - 1
    inside = place >= 0
    inside[inside] = (table.address[named_rows[inside]] - address[place[inside]]).astype(
        np.int64
    ) < size[place[inside]]
    totals = np.bincount(
        table.owner[named_rows[inside]],
        weights=np.minimum(table.size_bytes[named_rows[inside]], size[place[inside]]),
        minlength=len(table.owners),
    )
    owned_bytes, best = float(totals.sum()), int(totals.argmax())
    leak_bytes = float(allocations.requested_bytes[order].sum())
    if owned_bytes < _FEWEST_FOUND * leak_bytes or totals[best] < _MOST * owned_bytes:
        return None
    return table.owners[best]


def _event(view: Attribution, time_us: int | None) -> int:
    """The last event before the search; the last of all where its time is not known."""
    device = view.device
    if time_us is None or not len(device.events) or not int(device.clock_us[-1]):
        return len(device.events) - 1
    return int(np.searchsorted(device.clock_us, time_us, side="right")) - 1
