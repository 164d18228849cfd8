"""A leak: memory that grows with every step, and how much of that matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Place
from vramlens.analyses.leaks.recorded_owners import Owner
from vramlens.ground.leak_size import LEAST_SHARE
from vramlens.ground.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Leak:
    """Memory that grows with every step, or that seems to.

    Attributes:
        verdict: proven, likely, possible, or not a problem.
        kind: the contract's class (graph, container, ...); None where a recording cannot tell.
        place: the innermost user line common to all its allocations.
        bytes_per_step: requested bytes that a step leaves behind, the median slope.
        bytes: requested bytes that it held when judged: at the failure, else when the last step
            began.
        steps: how many steps left something behind.
        owner: what keeps it; None from a recording alone.
        fix: what to do; None where nothing needs doing.
        low, high: the range of bytes_per_step, over half of the steps or more.
        taken_per_step: the same as the allocator counts it: blocks are rounded up.
        allocations_per_step: how many blocks a step leaves behind.
        stacks: from how many stacks.
        device: whose memory it is.
        reason: why it is not more certain, or no problem at all; "" where there is nothing to say.
        evidence: what it rests on, one sentence each.
        needs_steps: how many more steps would tell; None where steps would not.
        rows: the allocations that it held.
        is_small: whether it is too small to matter on this device in a run's life.
    """

    verdict: Verdict
    kind: str | None
    place: Place | None
    bytes_per_step: int
    bytes: int
    steps: int
    owner: Owner | None
    fix: str | None
    low: int = 0
    high: int = 0
    taken_per_step: int = 0
    allocations_per_step: float = 0.0
    stacks: int = 0
    device: int = 0
    reason: str = ""
    evidence: tuple[str, ...] = ()
    needs_steps: int | None = None
    rows: NDArray[np.int64] | None = field(default=None, compare=False, repr=False)
    is_small: bool = False

    @property
    def sure(self) -> bool:
        """Whether it is certain enough to act on: proven or likely."""
        return self.verdict in (Verdict.PROVEN, Verdict.LIKELY)


def sized(leaks: Sequence[Leak], least_bytes: int, peak_bytes: int | None) -> tuple[Leak, ...]:
    """The leaks, those that are too small to matter marked and last.

    Args:
        least_bytes: what a step has to leave behind to matter.
        peak_bytes: the run's requested peak: what is a hundredth of it matters already; None where
            only the rate does.
    """
    marked = [replace(leak, is_small=_is_small(leak, least_bytes, peak_bytes)) for leak in leaks]
    return tuple(sorted(marked, key=lambda leak: leak.is_small))


def _is_small(leak: Leak, least_bytes: int, peak_bytes: int | None) -> bool:
    if not leak.bytes_per_step or leak.verdict == Verdict.NOT_A_PROBLEM:
        return False
    if max(leak.bytes_per_step, leak.taken_per_step) >= least_bytes:
        return False
    return peak_bytes is None or leak.bytes < LEAST_SHARE * peak_bytes
