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
from vramlens.trace.storage_facts import KeptBy


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLeak(Leak):
    """A leak, and what only a recording knows of it.

    Attributes:
        device: the index of the device; -1 is the host.
        stacks: from how many stacks.
        rows: the allocations that it held; None for memory that is no tensor's.
        is_stored_data: whether no module computed it, as what a replay buffer keeps.
    """

    device: int = 0
    low: int = 0
    high: int = 0
    allocations_per_step: float = 0.0
    stacks: int = 0
    is_stored_data: bool = False
    rows: NDArray[np.int64] | None = field(default=None, compare=False, repr=False)

    def is_mostly_in(self, rows: NDArray[np.int64]) -> bool:
        """Whether most of its allocations are among others."""
        return self.rows is not None and bool(2 * np.isin(self.rows, rows).sum() > len(self.rows))


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
