"""Growth: memory that every step leaves behind, by the line that asked for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.leaks.certainty import inside_one_call
from vramlens.analyses.leaks.cohorts import Cohort, Cohorts, cohorts_of
from vramlens.analyses.leaks.group_evidence import evidence_of
from vramlens.analyses.leaks.groups import CohortGroup, StepLoop, grouped
from vramlens.analyses.leaks.judgement import judged_leak
from vramlens.analyses.leaks.rebuilt_tensors import rebuilt_larger
from vramlens.analyses.leaks.recorded_leak import RecordedLeak, no_problem, order_of, rows_of
from vramlens.analyses.leaks.reserved_growth import reserved_growth
from vramlens.analyses.leaks.rhythm import rhythm_of
from vramlens.ground.verdict import Verdict
from vramlens.units import MIB, counted

FEWEST_STEPS = 3
"""With fewer steps before the one that judges, nothing can be said."""
TELLING_STEPS = 4
"""With fewer, nothing can be possible: see certainty."""
ENOUGH_STEPS = 10
"""With fewer, that nothing grows is not certain: one result kept a step would be no more than
possible.
"""
_RELEASED = 0.75
"""A step that begins with no more than this of the most that one began with comes after
something was given back.
"""
_WITH_IT = 0.95
"""In so many steps both or none left something behind."""
_NOTABLE_BYTES = MIB
_MOST_DISMISSED = 12


def steps_missing(judged_steps: int) -> int | None:
    """How many more steps would allow a verdict; None where there are enough."""
    missing = TELLING_STEPS - judged_steps
    return missing if missing > 0 else None


def leaks_of(view: Attribution, event: int | None = None) -> tuple[RecordedLeak, ...]:
    """What each step leaves behind and no later step gives back: the surest first, then the fastest
    growing.

    Args:
        event: as for ``growth_of_steps``.
    """
    return tuple(
        leak for leak in growth_of_steps(view, event) if leak.verdict != Verdict.NOT_A_PROBLEM
    )


def growth_of_steps(view: Attribution, event: int | None = None) -> tuple[RecordedLeak, ...]:
    """All that outlived its step and is worth a word: leaks first, then what is not a problem, with
    the reason.

    Args:
        event: judge the memory right after this event; by default when the last step begins,
            because what follows it may be the end of the program, where everything goes.
    """
    return () if inside_one_call(view) else _growth_of_loop(view, event)


def leaks_at(view: Attribution, event: int | None = None) -> tuple[RecordedLeak, ...]:
    """All that grows on a device, and what only seems to; judged after an event, or when the
    last step begins.
    """
    if inside_one_call(view):
        return ()
    leaks = _growth_of_loop(view, event)
    leaking_rows = rows_of(leak for leak in leaks if leak.verdict != Verdict.NOT_A_PROBLEM)
    renewed = [leak for leak in rebuilt_larger(view, event) if not leak.is_mostly_in(leaking_rows)]
    renewed_rows = rows_of(renewed)
    leaks = tuple(leak for leak in leaks if not leak.is_mostly_in(renewed_rows))
    further_leaks = (*renewed, *reserved_growth(view, (*leaks, *renewed), event))
    return tuple(sorted((*leaks, *further_leaks), key=order_of))


def _growth_of_loop(view: Attribution, event: int | None) -> tuple[RecordedLeak, ...]:
    """As ``growth_of_steps``, where what repeats does not lie inside of one module's call."""
    leaks = _growth_at(view, event)
    if event is None and not any(leak.sure for leak in leaks):
        leaks += _given_back_at_the_end(view)
    return tuple(sorted(leaks, key=order_of))


def _given_back_at_the_end(view: Attribution) -> list[RecordedLeak]:
    """What had grown until its function returned, before the moment that leaks are judged at.

    Judged at the step that began with most memory. What is asked for again after it was given back
    is a list that is emptied now and then, and no leak.
    """
    steps = view.steps
    last = len(steps) - 1
    if last <= FEWEST_STEPS:
        return []
    floors = view.device.requested_curve[steps.starts - 1]
    floors[0] = view.device.requested.base_bytes
    fullest = int(floors.argmax())
    if fullest < FEWEST_STEPS or floors[last] > _RELEASED * floors[fullest]:
        return []
    leaks = (_given_back(view, leak) for leak in _growth_at(view, None, fullest))
    given_back = [leak for leak in leaks if leak is not None]
    if fullest >= last - 2:
        return given_back
    return [replace(leak, verdict=Verdict.POSSIBLE) for leak in given_back]


def _given_back(view: Attribution, leak: RecordedLeak) -> RecordedLeak | None:
    """The leak with the step that gave it back; None where part of it was not, or came again."""
    if leak.rows is None or leak.verdict == Verdict.NOT_A_PROBLEM:
        return None
    allocations = view.device.allocations
    given_up = allocations.free_requested[leak.rows]
    stacks = np.unique(allocations.stack[leak.rows])
    comes_again = np.isin(allocations.stack, stacks) & (allocations.born > np.median(given_up))
    if (given_up >= len(view.device.events)).any() or comes_again.any():
        return None
    step = int(view.steps.of(given_up[-1:])[0])
    reason = f"all of it was freed in step {step}, perhaps when its function ended"
    return replace(leak, reason=leak.reason_and(reason))


def _growth_at(view: Attribution, event: int | None, step: int | None = None) -> list[RecordedLeak]:
    """What grows until a moment, and what does not."""
    cohorts = cohorts_of(view, event, step)
    if cohorts.last < FEWEST_STEPS:
        return []
    failed = any(request.event == event for request in view.device.out_of_memory)
    loop = StepLoop(view)
    growing, dismissed = _by_rhythm(cohorts)
    leaks = list(_leaks_of_groups(view, loop, cohorts, grouped(view, loop, growing), failed=failed))
    # What each comes too rarely for may grow together: one statement that asks from many places.
    pooled: set[int] = set()
    for pool in _pools(loop, dismissed):
        leak = _leak_of_group(view, loop, cohorts, pool, failed=False, pooled=True)
        if leak is not None and leak.verdict != Verdict.NOT_A_PROBLEM:
            leaks.append(leak)
            pooled |= {id(cohort) for cohort in pool.cohorts}
    if cohorts.left_out:
        reason = "the rest comes from too many stacks to check, each with little memory"
        small_stacks = no_problem(view, loop, cohorts.all[-1:], reason)
        leaks.append(replace(small_stacks, bytes=cohorts.left_out, place=None))
    unexplained = [pair for pair in dismissed if id(pair[0]) not in pooled]
    return leaks + _dismissed(view, loop, unexplained)


def _by_rhythm(cohorts: Cohorts) -> tuple[list[Cohort], list[tuple[Cohort, str]]]:
    """The cohorts that grow, and the others with the reason why they do not."""
    growing: list[Cohort] = []
    dismissed: list[tuple[Cohort, str]] = []
    states: list[Cohort] = []
    for cohort in cohorts.all:
        reason = rhythm_of(cohort.left, cohort.longest)
        if cohort.state is not None:
            states.append(cohort)
        elif isinstance(reason, str):
            dismissed.append((cohort, reason))
        else:
            growing.append(cohort)
    for state in states:
        if _is_of_new_optimizers(state, growing):
            growing.append(state)
        else:
            is_optimizers = state.state == Category.OPTIMIZER_STATE
            dismissed.append((state, "optimizer" if is_optimizers else "workspace"))
    return growing, dismissed


def _is_of_new_optimizers(state: Cohort, growing: Sequence[Cohort]) -> bool:
    """Whether an optimizer's state comes again and again, in the steps in which something else is
    kept: models that were trained one after the other, and are all there.
    """
    if state.state != Category.OPTIMIZER_STATE:
        return False
    if isinstance(rhythm_of(state.left, state.longest), str):
        return False
    return any((cohort.hit == state.hit).mean() >= _WITH_IT for cohort in growing)


def _leaks_of_groups(
    view: Attribution,
    loop: StepLoop,
    cohorts: Cohorts,
    groups: Iterable[CohortGroup],
    *,
    failed: bool,
) -> Iterator[RecordedLeak]:
    for group in groups:
        leak = _leak_of_group(view, loop, cohorts, group, failed=failed)
        if leak is not None:
            yield leak


def _leak_of_group(
    view: Attribution,
    loop: StepLoop,
    cohorts: Cohorts,
    group: CohortGroup,
    *,
    failed: bool,
    pooled: bool = False,
) -> RecordedLeak | None:
    evidence = evidence_of(view, loop, cohorts, group, failed=failed, pooled=pooled)
    return judged_leak(evidence) if evidence is not None else None


def _pools(loop: StepLoop, dismissed: Iterable[tuple[Cohort, str]]) -> list[CohortGroup]:
    """By statement, what single stacks leave behind too rarely to tell."""
    by_statement: dict[tuple[int, ...], CohortGroup] = {}
    for cohort, reason in dismissed:
        if reason in _TOO_RARE:
            statement = loop.statement(cohort)
            by_statement.setdefault(statement, CohortGroup(statement)).cohorts.append(cohort)
    return [group for group in by_statement.values() if len(group.cohorts) >= FEWEST_STEPS]


_TOO_RARE = ("once", "stopped", "slowing")
_REASONS = {
    "once": "allocated once and kept: later steps added nothing",
    "stopped": "stopped growing: later steps added nothing",
    "slowing": "filling up: later steps added less and less",
    "turnover": "each block is kept for {longest} and then freed",
    "together": "freed all at once from time to time, as at the end of an epoch (kept for "
    "{longest} at most)",
    "optimizer": "optimizer state, allocated once for each parameter",
    "workspace": "a cuBLAS workspace, allocated once and kept",
}


def _dismissed(
    view: Attribution, loop: StepLoop, dismissed: Sequence[tuple[Cohort, str]]
) -> list[RecordedLeak]:
    """What outlives its step without being a leak, by reason and statement, where it is much."""
    least_bytes = max(_NOTABLE_BYTES, view.device.requested.peak_bytes // 100)
    by_reason: dict[tuple[str, tuple[int, ...]], list[Cohort]] = {}
    for cohort, reason in dismissed:
        if not _goes_without_saying(cohort, reason):
            shown = "together" if reason == "turnover" and cohort.together else reason
            by_reason.setdefault((shown, loop.statement(cohort)), []).append(cohort)
    sizes = view.device.allocations.requested_bytes
    leaks = []
    for (reason, _), alike in by_reason.items():
        if sum(int(sizes[cohort.rows].sum()) for cohort in alike) < least_bytes:
            continue
        longest = counted(max(cohort.longest for cohort in alike), "step")
        leaks.append(no_problem(view, loop, alike, _REASONS[reason].format(longest=longest)))
    return sorted(leaks, key=lambda leak: -leak.bytes)[:_MOST_DISMISSED]


def _goes_without_saying(cohort: Cohort, reason: str) -> bool:
    """Whether it is a variable that the next step overwrites, or the model, built before the first
    step.
    """
    if reason == "turnover" or _is_of_last_step(cohort):
        return cohort.longest <= 1 and not cohort.together
    return reason == "once" and not cohort.left[1:].any() and not cohort.looped


def _is_of_last_step(cohort: Cohort) -> bool:
    """Whether the last judged step alone left something, of a kind that lives into the next one."""
    return cohort.longest > 0 and not cohort.left[:-1].any()
