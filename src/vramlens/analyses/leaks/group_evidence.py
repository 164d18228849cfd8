"""Group evidence: what a group of cohorts shows of itself, as far as a rule asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.model_copies import are_unused_copies, has_copy_of_step
from vramlens.analyses.leaks.certainty import (
    COPY,
    GRAPH,
    RESULT,
    SIGN,
    Sign,
    fills_memory,
    keeps_a_pass,
    signs_of,
)
from vramlens.analyses.leaks.cohorts import Cohort, Cohorts
from vramlens.analyses.leaks.evidence import fate_of, held_by_no_object
from vramlens.analyses.leaks.groups import CohortGroup, StepLoop
from vramlens.analyses.leaks.rate import Rate, rate_of
from vramlens.analyses.leaks.recorded_leak import owner_of
from vramlens.analyses.leaks.rhythm import PERIODIC, Rhythm, rhythm_of
from vramlens.trace.storage_facts import KeptBy

_STILL_IN_USE = 1.5
"""What is younger than so many times the longest life that was seen may still be in use."""


@dataclass(frozen=True, eq=False)
class GroupEvidence:
    """What a group of cohorts shows; each part is computed when a rule first asks for it.

    Attributes:
        view, loop, cohorts: the device, its training loop, and all that outlived its step.
        group: what may be one leak.
        rhythm: in which steps it left something behind.
        longest: how many steps the longest-lived of its like lived; 0 where all died in their step.
        failed: whether the moment is that of a failed request.
        pooled: whether the group is of one statement, none of whose places grows by itself.
    """

    view: Attribution
    loop: StepLoop
    cohorts: Cohorts
    group: CohortGroup
    rhythm: Rhythm
    longest: int
    failed: bool
    pooled: bool

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The allocations that are the leak's, in order of birth."""
        own_rows = [self._own_rows(cohort) for cohort in self.group.cohorts]
        return np.sort(np.concatenate(own_rows))

    def _own_rows(self, cohort: Cohort) -> NDArray[np.int64]:
        """Of a cohort: from where the rhythm begins on, without what the latest steps still use."""
        first, last = self.rhythm.first, self.cohorts.last
        rows = cohort.rows[self.view.step[cohort.rows] >= first]
        if not cohort.longest:
            return rows
        born = self.view.step[rows]
        in_use_steps = _STILL_IN_USE * cohort.longest
        settled = cohort.left[first : max(first + 1, last - int(in_use_steps))]
        usual = int(np.median(settled[settled > 0])) if (settled > 0).any() else 0
        rank = np.arange(len(rows)) - np.searchsorted(born, born)
        is_recent = last - born <= in_use_steps
        return rows[~is_recent | (rank < usual)]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The requested bytes of each."""
        return self.view.device.allocations.requested_bytes[self.rows]

    @cached_property
    def born(self) -> NDArray[np.int64]:
        """The step that each was born in."""
        return self.view.step[self.rows]

    @cached_property
    def total_bytes(self) -> int:
        """The requested bytes of all."""
        return int(self.sizes.sum())

    @cached_property
    def rate(self) -> Rate:
        """The requested bytes that a step leaves behind."""
        return self._rate_of(self.sizes)

    @cached_property
    def taken_rate(self) -> Rate:
        """The same as the allocator counts it."""
        return self._rate_of(self.view.device.allocations.taken_bytes[self.rows])

    def _rate_of(self, sizes: NDArray[np.int64]) -> Rate:
        last = self.cohorts.last
        by_step = np.bincount(self.born, weights=sizes, minlength=last).astype(np.int64)
        # The latest step may still be using its own.
        return rate_of(by_step[self.rhythm.first : last - (self.longest > 0)])

    @property
    def every_steps(self) -> int:
        """How many steps lie between two that leave something behind; 1 where most do."""
        return self.rhythm.apart if self.rhythm.kind == PERIODIC else 1

    @property
    def usual_bytes(self) -> float:
        """The requested bytes that one time leaves behind."""
        return self.rate.bytes if self.every_steps == 1 else self.total_bytes / self.times

    @cached_property
    def times(self) -> int:
        """How many steps left what is still there."""
        return len(np.unique(self.born))

    @property
    def blocks_each_time(self) -> float:
        """How many blocks a step leaves behind that leaves any."""
        return len(self.rows) / max(self.times, 1)

    @property
    def stacks(self) -> int:
        """From how many stacks."""
        return len({cohort.stack for cohort in self.group.cohorts})

    @cached_property
    def keeps_graph(self) -> bool:
        """Whether a whole forward pass is kept, as only a graph does."""
        if self.pooled or not self.group.graph:
            return False
        return keeps_a_pass(self.view, self.loop, self.group, self.rhythm.first)

    @cached_property
    def filled_memory(self) -> bool:
        """Whether it took much of the memory that ran out."""
        return self.failed and fills_memory(self.view, self.total_bytes)

    @cached_property
    def fate(self) -> str | None:
        """What became of it when the loop ended."""
        return fate_of(self.view, self.rows, self.cohorts.event)

    @cached_property
    def is_held_by_graph(self) -> bool:
        """Whether the process found nothing but a graph that keeps it."""
        return held_by_no_object(self.view, self.rows)

    @cached_property
    def signs(self) -> Sequence[Sign]:
        """What tells it from a buffer that has not filled yet; a graph needs none."""
        if self.keeps_graph:
            return ()
        return signs_of(
            self.view,
            self.group,
            self.rows,
            self.cohorts.event,
            self.fate,
            filled=self.filled_memory,
            held_by_graph=self.is_held_by_graph,
        )

    @cached_property
    def copies_model(self) -> bool:
        """Whether each time leaves a copy of the model behind that nothing uses."""
        return not self.pooled and are_unused_copies(self.view, self.rows)

    @cached_property
    def rhythm_so_far(self) -> Rhythm:
        """The rhythm, with what the step under way has left behind already, where that is sure."""
        if self.kept != COPY:
            return self.rhythm
        cohorts, steps, outlived = self.cohorts, self.rhythm.steps, self.rhythm.outlived
        more = int(has_copy_of_step(self.view, self.rows, cohorts.last, cohorts.event))
        return replace(self.rhythm, steps=steps + more, outlived=outlived + more)

    @property
    def kept(self) -> str:
        """What is kept: GRAPH, COPY, SIGN or RESULT."""
        if self.keeps_graph:
            return GRAPH
        if self.copies_model:
            return COPY
        return SIGN if self.signs else RESULT

    @cached_property
    def owner(self) -> KeptBy | None:
        """What the recording says keeps it; None where it does not say."""
        return owner_of(self.view, self.rows)


def evidence_of(
    view: Attribution,
    loop: StepLoop,
    cohorts: Cohorts,
    group: CohortGroup,
    *,
    failed: bool,
    pooled: bool = False,
) -> GroupEvidence | None:
    """What may be one leak; None where it does not grow.

    Args:
        failed: whether memory is judged at a failed request.
        pooled: whether what single stacks leave behind too rarely is summed.
    """
    left_by_step, longest = group.cohorts[0].left, group.cohorts[0].longest
    if pooled:
        left_by_step = np.sum([cohort.left for cohort in group.cohorts], axis=0)
        longest = max(cohort.longest for cohort in group.cohorts)
    rhythm = rhythm_of(left_by_step, longest)
    if isinstance(rhythm, str):
        return None
    return GroupEvidence(
        view=view,
        loop=loop,
        cohorts=cohorts,
        group=group,
        rhythm=rhythm,
        longest=longest,
        failed=failed,
        pooled=pooled,
    )
