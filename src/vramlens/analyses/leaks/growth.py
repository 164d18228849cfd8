"""Growth: memory that every step leaves behind, by the line that asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.modules import OUTSIDE
from vramlens.analyses.finding import Place
from vramlens.analyses.leaks.certainty import (
    GRAPH,
    RESULT,
    SIGN,
    VERDICTS,
    inside_one_call,
    keeps_a_pass,
    most_by_pattern,
    one_size_a_step,
    signs_of,
    steps_until_large,
    verdict_of_steps,
)
from vramlens.analyses.leaks.cohorts import Cohort, Cohorts, cohorts_of
from vramlens.analyses.leaks.evidence import OLDEST_FIRST, fate_of
from vramlens.analyses.leaks.fixes import fix_of
from vramlens.analyses.leaks.groups import Group, Loop, grouped, place_of
from vramlens.analyses.leaks.rate import rate_of
from vramlens.analyses.leaks.recorded_owners import Owner, owner_of
from vramlens.analyses.leaks.rhythm import EVERY, IRREGULAR, PERIODIC, Rhythm, rhythm_of
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK
from vramlens.trace.stacks import is_user_file
from vramlens.units import MIB, counted

FEWEST_STEPS = 3
"""With fewer steps before the one that judges, nothing can be said."""
TELLING_STEPS = 4
"""With fewer, nothing can be possible: see leak_verdict."""
ENOUGH_STEPS = 10
"""With fewer, that nothing grows is not certain: one result kept a step would be no more than
possible.
"""
_FILLED = 0.2
"""What takes this much of the memory that ran out is proven by that."""
_REPLACED = 0.5
_RELEASED = 0.75
"""A step that begins with no more than this of the most that one began with comes after
something was given back.
"""
_ALL_BUT_FEW = 0.9
_UNTIL_THEN = "a buffer that has not filled yet, or a list that is emptied later, looks the same"
_NOTABLE_BYTES = MIB
_MOST_DISMISSED = 12


def steps_missing(judged_steps: int) -> int | None:
    """How many more steps would allow a verdict; None where there are enough."""
    missing = TELLING_STEPS - judged_steps
    return missing if missing > 0 else None


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


def leaks_of(view: Attribution, event: int | None = None) -> tuple[Leak, ...]:
    """What each step leaves behind and no later step gives back: the surest first, then the fastest
    growing.

    Args:
        event: judge the memory right after this event; by default when the last step begins,
            because what follows it may be the end of the program, where everything goes.
    """
    return tuple(
        leak for leak in growth_of_steps(view, event) if leak.verdict != Verdict.NOT_A_PROBLEM
    )


def growth_of_steps(view: Attribution, event: int | None = None) -> tuple[Leak, ...]:
    """All that outlived its step and is worth a word: leaks first, then what is no problem, with
    the reason.
    """
    if inside_one_call(view):
        return ()
    found = _growth_at(view, event)
    if event is None and not any(leak.sure for leak in found):
        found += _given_back_at_the_end(view)
    return tuple(
        sorted(
            found,
            key=lambda leak: (VERDICTS.index(leak.verdict), -leak.bytes_per_step, -leak.bytes),
        )
    )


def _given_back_at_the_end(view: Attribution) -> list[Leak]:
    """What had grown until its function returned, before the moment that leaks are judged at.

    Judged at the step that began with most memory. What is asked for again after it was given back
    is a list that is emptied now and then, and no leak.
    """
    steps, allocations = view.steps, view.device.allocations
    last = len(steps) - 1
    if last <= FEWEST_STEPS:
        return []
    floors = view.device.requested_curve[steps.starts - 1]
    floors[0] = view.device.requested.base_bytes
    full = int(floors.argmax())
    if full < FEWEST_STEPS or floors[last] > _RELEASED * floors[full]:
        return []
    found = []
    for leak in _growth_at(view, None, full):
        if leak.rows is None or leak.verdict == Verdict.NOT_A_PROBLEM:
            continue
        given_up = allocations.free_requested[leak.rows]
        stacks = np.unique(allocations.stack[leak.rows])
        again = np.isin(allocations.stack, stacks) & (allocations.born > np.median(given_up))
        if (given_up >= len(view.device.events)).any() or again.any():
            continue
        reason = f"all of it was given back in step {int(steps.of(given_up[-1:])[0])}, perhaps when its function ended"
        verdict = leak.verdict if full >= last - 2 else Verdict.POSSIBLE
        found.append(
            replace(leak, verdict=verdict, reason="; ".join(filter(None, (leak.reason, reason))))
        )
    return found


def _growth_at(view: Attribution, event: int | None, step: int | None = None) -> list[Leak]:
    """What grows until a moment, and what does not."""
    cohorts = cohorts_of(view, event, step)
    if cohorts.last < FEWEST_STEPS:
        return []
    failed = any(request.event == event for request in view.device.out_of_memory)
    loop = Loop(view)
    growing: list[tuple[Cohort, Rhythm]] = []
    others: list[tuple[Cohort, str]] = []
    for cohort in cohorts.all:
        said = _state_reason(cohort) or rhythm_of(cohort.left, cohort.longest)
        if isinstance(said, str):
            others.append((cohort, said))
        else:
            growing.append((cohort, said))
    # What each comes too rarely for may grow together: one statement that asks from many places.
    rare = [cohort for cohort, said in others if said in ("once", "stopped", "slowing")]
    found: list[Leak] = []
    explained: set[int] = set()
    for group in grouped(loop, [cohort for cohort, _ in growing]):
        leak = _judged(view, loop, cohorts, group, failed=failed)
        if leak is not None:
            found.append(leak)
    for pool in _pooled(loop, rare, cohorts.last):
        leak = _judged(view, loop, cohorts, pool, failed=False, pooled=True)
        if leak is not None and leak.verdict != Verdict.NOT_A_PROBLEM:
            found.append(leak)
            explained |= {id(one) for one in pool.cohorts}
    if cohorts.left_out:
        found.append(replace(_no_problem(view, loop, cohorts.all[-1:], ""), bytes=cohorts.left_out, place=None,
            reason="what more stacks left behind, each of them little: too many to be judged"))  # fmt: skip
    left_over = [(one, said) for one, said in others if id(one) not in explained]
    return found + _dismissed(view, loop, cohorts, left_over)


def _state_reason(cohort: Cohort) -> str | None:
    if cohort.state is None:
        return None
    return "optimizer" if cohort.state == Category.OPTIMIZER_STATE else "workspace"


def _pooled(loop: Loop, cohorts: Sequence[Cohort], last: int) -> list[Group]:
    """By statement, what single stacks leave behind too rarely to tell."""
    by_statement: dict[tuple[int, ...], Group] = {}
    for cohort in cohorts:
        statement = loop.statement(cohort)
        by_statement.setdefault(statement, Group(statement)).cohorts.append(cohort)
    return [group for group in by_statement.values() if len(group.cohorts) >= FEWEST_STEPS]


def _judged(
    view: Attribution,
    loop: Loop,
    cohorts: Cohorts,
    group: Group,
    *,
    failed: bool,
    pooled: bool = False,
) -> Leak | None:
    """The verdict on what may be one leak; None where it does not grow."""
    allocations, last = view.device.allocations, cohorts.last
    left = group.cohorts[0].left
    longest = group.cohorts[0].longest
    if pooled:
        left = np.sum([one.left for one in group.cohorts], axis=0)
        longest = max(one.longest for one in group.cohorts)
    rhythm = rhythm_of(left, longest)
    if isinstance(rhythm, str):
        return None
    rows = np.concatenate([_own(view, one, rhythm.first, last) for one in group.cohorts])
    rows = np.sort(rows)
    sizes, taken = allocations.requested_bytes[rows], allocations.taken_bytes[rows]
    born = view.step[rows]
    whole = slice(rhythm.first, last - (longest > 0))  # the latest step may still be using its own
    rate = rate_of(np.bincount(born, weights=sizes, minlength=last).astype(np.int64)[whole])
    rate_taken = rate_of(np.bincount(born, weights=taken, minlength=last).astype(np.int64)[whole])
    total = int(sizes.sum())
    graph = not pooled and group.graph and keeps_a_pass(view, loop, group, rhythm.first)
    filled = failed and total >= _FILLED * view.device.requested.peak_bytes
    fate = fate_of(view, rows, cohorts.event)
    signs = [] if graph else signs_of(view, group, rows, cohorts.event, fate, filled=filled)
    verdict, needs = verdict_of_steps(rhythm, GRAPH if graph else SIGN if signs else RESULT)
    if verdict is None:
        return None
    if needs is not None and not graph and not signs:
        held = int(view.device.requested_curve[cohorts.event])
        needs = min(needs, steps_until_large(rhythm, rate.bytes, total, held) or needs)
    if filled and verdict == Verdict.LIKELY:
        verdict = Verdict.PROVEN
    doubts = []
    if not rhythm.steady:
        doubts.append(
            "the later steps left less behind than the earlier ones: it may be filling up"
        )
    if not graph and not filled and one_size_a_step(sizes, born):
        doubts.append(
            "no two steps left blocks of one size: a cache with one entry a shape looks the same"
        )
    if not graph and not signs and fate == OLDEST_FIRST:
        doubts.append("it went with the model at the very end, the oldest first, as a deque or a dict does: one that is"
                      " bounded and has not filled looks the same")  # fmt: skip
    if pooled:
        doubts.append("it comes from many places of one statement, none of which grows by itself")
    if doubts:
        verdict, needs = Verdict.POSSIBLE, None
    most, doubt = most_by_pattern(view, fate, graph=graph, filled=filled)
    if most == Verdict.POSSIBLE or VERDICTS.index(most) > VERDICTS.index(verdict):
        verdict, needs = most, None
        doubts.append(doubt)
    if _replaces(cohorts, rhythm, int(sizes.sum())):
        return _no_problem(
            view, loop, group.cohorts, "as much from before the recording was given back meanwhile"
        )
    each = len(rows) / max(rhythm.steps, 1)
    stacks = len({one.stack for one in group.cohorts})
    seen = [*_evidence(rhythm, longest, each, stacks, graph), *(sign.evidence for sign in signs)]
    seen += _asked_by(view, group, rows, graph)
    owner = owner_of(view, rows)
    if owner is not None and owner.verdict == Verdict.NOT_A_PROBLEM:
        return _no_problem(
            view,
            loop,
            group.cohorts,
            f"{owner.name}, a {owner.kind}, keeps it, and is bounded",
            owner,
        )
    if owner is not None and owner.verdict in (Verdict.PROVEN, Verdict.LIKELY):
        verdict, needs, doubts = min(verdict, owner.verdict, key=VERDICTS.index), None, []
    if verdict == Verdict.POSSIBLE and not doubts:
        doubts.append("too few steps to tell" if graph else _UNTIL_THEN)
    elif verdict == Verdict.LIKELY and not graph and owner is None and not doubts:
        doubts.append(signs[0].doubt if signs else _UNTIL_THEN)
    leak = Leak(
        verdict=verdict,
        kind=owner.leak_class
        if owner is not None
        else "pinned"
        if view.device.device < 0
        else None,
        place=place_of(view, loop, group.cohorts),
        bytes_per_step=round(rate.bytes),
        bytes=total,
        steps=int((np.bincount(born, minlength=last) > 0).sum()),
        owner=owner,
        fix=None,
        low=round(rate.low),
        high=round(rate.high),
        taken_per_step=round(rate_taken.bytes),
        allocations_per_step=each,
        stacks=stacks,
        device=view.device.device,
        reason="; ".join(doubts),
        evidence=tuple(seen),
        needs_steps=needs if verdict == Verdict.POSSIBLE else None,
        rows=rows,
    )
    return replace(leak, fix=fix_of(leak, graph=graph, result_bytes=int(sizes.max())))


def _own(view: Attribution, cohort: Cohort, first: int, last: int) -> NDArray[np.int64]:
    """The rows of a cohort that are the leak's: from where it begins on, without what the latest
    steps still use.
    """
    born = view.step[cohort.rows]
    rows = cohort.rows[born >= first]
    if not cohort.longest:
        return rows
    born = view.step[rows]
    settled = cohort.left[first : max(first + 1, last - int(1.5 * cohort.longest))]
    usual = int(np.median(settled[settled > 0])) if (settled > 0).any() else 0
    rank = np.arange(len(rows)) - np.searchsorted(born, born)
    recent = last - born <= 1.5 * cohort.longest
    return rows[~recent | (rank < usual)]


def _replaces(cohorts: Cohorts, rhythm: Rhythm, size_bytes: int) -> bool:
    """Whether steps gave back about as much of what is older than the recording: a ring that was
    full before it.
    """
    returned = cohorts.returned[rhythm.first : cohorts.last]
    return bool(
        returned.sum() >= _REPLACED * size_bytes
        and (returned > 0).sum() >= _REPLACED * max(rhythm.steps - 1, 1)
    )


def _evidence(rhythm: Rhythm, longest: int, each: float, stacks: int, graph: bool) -> list[str]:
    often = {
        EVERY: "each left",
        PERIODIC: "at even distances left",
        IRREGULAR: "now and then left",
    }[rhythm.kind]
    said = [f"{counted(rhythm.steps, 'step')} {often} something behind that nothing gave back"]
    if graph:
        said.append(
            f"{each:,.0f} blocks a step, from {stacks:,} places of one forward pass: a graph is kept whole"
        )
    if longest:
        said.append(
            f"what else those lines asked for was given back after {counted(longest, 'step')} at most"
        )
    return said


def _asked_by(view: Attribution, group: Group, rows: NDArray[np.int64], graph: bool) -> list[str]:
    """The module that the memory was made in, and the library that the user's line called for
    it.
    """
    said = []
    modules, counts = np.unique(view.modules.module[rows], return_counts=True)
    if modules[counts.argmax()] != OUTSIDE and counts.max() >= _ALL_BUT_FEW * len(rows):
        said.append(f"made in the module {view.modules.paths[int(modules[counts.argmax()])]}")
    stack = group.cohorts[0].stack
    if not graph and stack != NO_STACK:
        frames = view.trace.stacks.of(stack)
        if frames and not is_user_file(frames[0].file):
            said.append(f"asked for inside of {frames[0]}")
    return said


_REASONS = {
    "once": "made once, and kept: nothing more came in later steps",
    "stopped": "stopped growing: the later steps added nothing",
    "slowing": "fills up: the later steps added less and less",
    "turnover": "each block is kept for {longest} and then given back",
    "together": "given back all at once now and then, as at an epoch's end (kept for {longest} at most)",
    "optimizer": "the optimizer's state, made once for each parameter",
    "workspace": "a work buffer of cuBLAS, made once and kept",
}


def _dismissed(
    view: Attribution, loop: Loop, cohorts: Cohorts, others: Sequence[tuple[Cohort, str]]
) -> list[Leak]:
    """What outlives its step without being a leak, by reason and statement, where it is much."""
    least = max(_NOTABLE_BYTES, view.device.requested.peak_bytes // 100)
    by_reason: dict[tuple[str, tuple[int, ...]], list[Cohort]] = {}
    for cohort, said in others:
        reason = said
        if reason == "turnover" and cohort.together:
            reason = "together"
        if reason == "turnover" and cohort.longest <= 1:
            continue  # a variable that the next step overwrites
        if reason == "once" and not cohort.left[1:].any() and not cohort.looped:
            continue  # the model, built before the first step
        by_reason.setdefault((reason, loop.statement(cohort)), []).append(cohort)
    sizes = view.device.allocations.requested_bytes
    found = []
    for (reason, _), mine in by_reason.items():
        if sum(int(sizes[one.rows].sum()) for one in mine) >= least:
            longest = counted(max(one.longest for one in mine), "step")
            found.append(_no_problem(view, loop, mine, _REASONS[reason].format(longest=longest)))
    return sorted(found, key=lambda leak: -leak.bytes)[:_MOST_DISMISSED]


def _no_problem(
    view: Attribution,
    loop: Loop,
    cohorts: Sequence[Cohort],
    reason: str,
    owner: Owner | None = None,
) -> Leak:
    allocations = view.device.allocations
    rows = np.sort(np.concatenate([one.rows for one in cohorts]))
    return Leak(
        verdict=Verdict.NOT_A_PROBLEM,
        kind=None,
        place=place_of(view, loop, cohorts),
        bytes_per_step=0,
        bytes=int(allocations.requested_bytes[rows].sum()),
        steps=len(np.unique(view.step[rows])),
        owner=owner,
        fix=None,
        stacks=len({one.stack for one in cohorts}),
        device=view.device.device,
        reason=reason,
        rows=rows,
    )
