"""Owners: what keeps a leak, where the recording holds what was seen in the process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_OWNER
from vramlens.trace.owners import KeptBy

_MOST = 0.5
"""An owner of so much of what was found of a leak is the leak's."""
_FEWEST_FOUND = 0.2
"""And so much of the leak's bytes must have been found."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The statement that keeps memory, and the chain from a root to it.

    Attributes:
        name: as the program calls it.
        kind: what it is: a list, an attribute, a hook.
        file, line: of the statement; None where none was found.
        chain: from the root to the tensor, one link each.
        leak_class: the contract's class of what it keeps; None where it does not say.
        verdict: what the process judged; None where it saw no growth.
        fix: what to do, as the process saw it; None where it does not say.
        share: how much of the leak's bytes it was seen to hold.
        fix_share: how much of what it holds the fix frees, from 0 to 1.
    """

    name: str
    kind: str
    file: str | None
    line: int | None
    chain: tuple[str, ...] = ()
    leak_class: str | None = None
    verdict: Verdict | None = None
    fix: str | None = None
    share: float = 1.0
    fix_share: float = 1.0


def owner_of(view: Attribution, rows: NDArray[np.int64]) -> Owner | None:
    """What keeps most of some allocations; None where the recording does not say.

    A storage begins where its block does, or inside of it. The search may have run before or after
    the moment that
    leaks are judged at: only blocks that were alive when it ran are joined.
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
    share = min(1.0, float(totals[best]) / max(leak_bytes, 1.0))
    return _owner(table.owners[best], share)


def _owner(recorded: KeptBy, share: float) -> Owner:
    return Owner(
        name=recorded.name,
        kind=recorded.kind,
        file=recorded.file or None,
        line=recorded.line or None,
        chain=recorded.chain,
        leak_class=recorded.leak_class,
        verdict=None if recorded.verdict is None else Verdict(recorded.verdict),
        fix=recorded.fix,
        share=share,
        fix_share=recorded.fix_share,
    )


def _event(view: Attribution, time_us: int | None) -> int:
    """The last event before the search; the last of all where its time is not known."""
    device = view.device
    if time_us is None or not len(device.events) or not int(device.clock_us[-1]):
        return len(device.events) - 1
    return int(np.searchsorted(device.clock_us, time_us, side="right")) - 1
