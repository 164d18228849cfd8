"""A recording's leak: with the allocations that it holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.leaks.cohorts import Cohort
from vramlens.analyses.leaks.groups import StepLoop, place_of
from vramlens.ground.verdict import Verdict
from vramlens.leak.leak import Leak, is_too_small
from vramlens.trace import NO_OWNER
from vramlens.trace.storage_facts import KeptBy

_MOST = 0.5
"""An owner of so much of what was found of a leak is the leak's."""
_FEWEST_FOUND = 0.2
"""And so much of the leak's bytes must have been found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLeak(Leak):
    """A leak, and what only a recording knows of it.

    Attributes:
        device: the index of the device; -1 is the host.
        stacks: from how many stacks.
        rows: the allocations that it held; None for memory that is not a tensor's.
        kept_in: the list, dict or attribute that names most of it; "" where nothing does.
        is_stored_data: whether no module computed it, as what a replay buffer keeps.
    """

    device: int = 0
    low: int = 0
    high: int = 0
    allocations_per_step: float = 0.0
    stacks: int = 0
    is_stored_data: bool = False
    kept_in: str = ""
    rows: NDArray[np.int64] | None = field(default=None, compare=False, repr=False)

    def is_mostly_in(self, rows: NDArray[np.int64]) -> bool:
        """Whether most of its allocations are among others."""
        return self.rows is not None and bool(2 * np.isin(self.rows, rows).sum() > len(self.rows))


def order_of(leak: RecordedLeak) -> tuple[bool, int, int, int]:
    """Sorts leaks: the surest first, then the fastest growing; what is too small to matter last."""
    return leak.is_small, leak.verdict.rank, -leak.bytes_per_step, -leak.bytes


def are_mostly_sure(leaks: Sequence[RecordedLeak]) -> bool:
    """Whether at least half of what leaks left is surely leaked: a store that still fills looks the same."""
    sure_bytes = sum(leak.bytes for leak in leaks if leak.sure)
    return 2 * sure_bytes >= sum(leak.bytes for leak in leaks)


def rows_of(leaks: Iterable[RecordedLeak]) -> NDArray[np.int64]:
    """The allocations of several leaks."""
    rows = [leak.rows for leak in leaks if leak.rows is not None]
    return np.concatenate(rows) if rows else np.zeros(0, np.int64)


def sized(
    leaks: Sequence[RecordedLeak], least_bytes: int, peak_bytes: int | None
) -> tuple[RecordedLeak, ...]:
    """The leaks, those that are too small to matter marked and last.

    Args:
        least_bytes: what a step has to leave behind to matter.
        peak_bytes: the run's requested peak; None where only the rate matters.
    """
    marked = [replace(leak, is_small=is_too_small(leak, least_bytes, peak_bytes)) for leak in leaks]
    return tuple(sorted(marked, key=lambda leak: leak.is_small))


def no_problem(
    view: Attribution,
    loop: StepLoop,
    cohorts: Sequence[Cohort],
    reason: str,
    owner: KeptBy | None = None,
) -> RecordedLeak:
    """What outlived its step and is none, with the reason."""
    allocations = view.device.allocations
    rows = np.sort(np.concatenate([cohort.rows for cohort in cohorts]))
    return RecordedLeak(
        verdict=Verdict.NOT_A_PROBLEM,
        kind=None,
        place=place_of(view, loop, cohorts),
        bytes_per_step=0,
        bytes=int(allocations.requested_bytes[rows].sum()),
        steps=len(np.unique(view.step[rows])),
        owner=owner,
        storages=len(rows),
        stacks=len({cohort.stack for cohort in cohorts}),
        device=view.device.device,
        reason=reason,
        rows=rows,
    )


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
