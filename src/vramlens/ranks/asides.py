"""Differences that stand aside: memory that no failure of the job came from."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from vramlens.ranks.rank_difference import RankDifference
from vramlens.ranks.rank_failures import FailureOrder

_OUTSIDE = ("other_process", "nccl")
"""Causes outside of PyTorch's allocator: the limit of a process (set_per_process_memory_fraction) counts
only what the allocator reserves (c10/cuda/CUDACachingAllocator.cpp, alloc_block).
"""
_REFUSED = "; the request that failed was refused by the process's own limit, which counts PyTorch's allocator only"


class Asides:
    """What the failures of a job make of its differences.

    Args:
        failures: who failed, and of what.
    """

    def __init__(self, failures: FailureOrder) -> None:
        self._failures = failures

    def is_last(self, difference: RankDifference) -> bool:
        """Whether a difference is told after all others: other jobs, and unused memory, of which no rank
        ran out.
        """
        if difference.cause == "other_process":
            return not self._short.intersection(difference.ranks)
        return difference.cause == "allocator" and not self._of_memory.intersection(
            difference.ranks
        )

    def taken_from(
        self, differences: Iterable[RankDifference]
    ) -> tuple[tuple[RankDifference, ...], list[str]]:
        """The differences without those that no failure came from, and these as sentences: other jobs where
        no rank's GPU ran out of memory, what no limit of a process counts, and communicators where no rank
        ran out of memory.
        """
        of_this_job, asides = [], []
        for difference in differences:
            if self._is_not_counted(difference):
                asides.append(difference.title + _REFUSED)
            elif self._is_of_another_job(difference) or self._is_beside_hang(difference):
                asides.append(difference.title)
            else:
                of_this_job.append(difference)
        return tuple(of_this_job), asides

    def _is_not_counted(self, difference: RankDifference) -> bool:
        return difference.cause in _OUTSIDE and self._at_own_limit.issuperset(difference.ranks)

    def _is_of_another_job(self, difference: RankDifference) -> bool:
        is_foreign = difference.cause == "other_process" and bool(self._failures.failed)
        return is_foreign and not self._short.intersection(difference.ranks)

    def _is_beside_hang(self, difference: RankDifference) -> bool:
        is_of_nccl = difference.cause == "nccl" and bool(self._failures.failed)
        return is_of_nccl and not self._of_memory

    @cached_property
    def _at_own_limit(self) -> frozenset[int]:
        """The ranks that the limits of their processes refused memory."""
        return frozenset(
            failed.rank
            for failed in self._failures.failed
            if failed.failure is not None and failed.failure.at_own_limit
        )

    @cached_property
    def _short(self) -> frozenset[int]:
        """The ranks whose GPU had no memory left for them."""
        return self._of_memory - self._at_own_limit

    @cached_property
    def _of_memory(self) -> frozenset[int]:
        return frozenset(failed.rank for failed in self._failures.failed if failed.is_of_memory)
