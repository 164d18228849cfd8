"""Cohorts: what each step left behind, by the stack that asked for it, and how long its like
usually lives.

A leak is a stack of which something outlives the step it was born in, step after step. A slope of
the total cannot tell that from a model that is built, a cache that fills, or a longer batch; births
and deaths can.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.phases import MODULE_CALL, Phase
from vramlens.trace import NO_STACK

_STATES = (Category.OPTIMIZER_STATE, Category.WORKSPACE)
_MOST_COHORTS = 5_000
"""More stacks than that leave something behind in no program; the largest are judged."""


@dataclass(frozen=True, eq=False)
class Cohort:
    """What one stack left behind, by the step it was born in.

    Attributes:
        stack: its id; NO_STACK for what autograd's threads asked for on behalf of ``frame``.
        frame: the user line as a frame id; -1 without one.
        rows: the allocations that were alive when judged, in order of birth.
        left: by step, how many of them.
        longest: of those given back before, how many steps the longest-lived lived; 0 where all
            died in their step.
        together: whether those that lived for several steps were given back many at once.
        forward: whether a forward pass asked for most of them.
        called: whether a module's call did.
        looped: whether a step's work did, and not what builds the model or loads it.
        state: the category, where they are an optimizer's state or a work buffer; else None.
    """

    stack: int
    frame: int
    rows: NDArray[np.int64]
    left: NDArray[np.int64]
    longest: int
    together: bool
    forward: bool
    called: bool
    looped: bool
    state: Category | None

    @property
    def hit(self) -> NDArray[np.bool_]:
        """By step, whether it left something behind."""
        return self.left > 0


@dataclass(frozen=True, eq=False)
class Cohorts:
    """All cohorts of a device at one moment.

    Attributes:
        event: the moment: what is alive right after it counts.
        last: the step that the moment is in; steps before it are judged.
        all: the largest first.
        returned: by step, the bytes from before the recording that were given back in it.
        left_out: the bytes of what is more than can be judged.
    """

    event: int
    last: int
    all: tuple[Cohort, ...]
    returned: NDArray[np.int64]
    left_out: int = 0


def moment_of(
    view: Attribution, event: int | None = None, step: int | None = None
) -> tuple[int, int]:
    """The event right after which memory is judged, and the step that is then under way.

    Args:
        event: that very event.
        step: when this step begins; by default the last one, because what follows may be the end of
            the program, where everything goes.
    """
    if event is not None:
        return event, int(view.steps.of(np.array([event]))[0])
    last = len(view.steps) - 1 if step is None else step
    return int(view.steps.starts[last]) - 1, last


def cohorts_of(view: Attribution, event: int | None = None, step: int | None = None) -> Cohorts:
    """What outlived the step it was born in, by stack; judged as ``moment_of`` says."""
    steps, allocations = view.steps, view.device.allocations
    if not len(steps):
        return Cohorts(-1, 0, (), np.zeros(0, np.int64))
    moment, last = moment_of(view, event, step)
    born, given_up = view.step, allocations.free_requested
    in_steps = (allocations.born >= 0) & (born < last)
    key = _keys(view)
    gone = np.flatnonzero(in_steps & (given_up <= moment))
    lived = steps.of(given_up[gone]) - born[gone]
    lasting = gone[lived >= 1]
    lived = lived[lived >= 1]
    longest = np.zeros(int(key.max(initial=0)) + 1, np.int64)
    np.maximum.at(longest, key[lasting], lived)
    together = _given_back_together(key[lasting], steps.of(given_up[lasting]), lived, len(longest))

    alive = np.flatnonzero(in_steps & (given_up > moment))
    order = alive[np.argsort(key[alive], kind="stable")]
    kinds, first = np.unique(key[order], return_index=True)
    parts = np.split(order, first[1:]) if len(kinds) else []
    sizes = np.array([int(allocations.requested_bytes[rows].sum()) for rows in parts], np.int64)
    judged_cohorts = []
    in_call = view.trace.stacks.any_frame(view.trace.stacks.mark_frames(MODULE_CALL))
    largest = np.argsort(-sizes, kind="stable")
    for place in largest[:_MOST_COHORTS].tolist():
        rows, kind = parts[place], int(kinds[place])
        phase = view.phases.phase[rows]
        stack = int(allocations.stack[rows[0]])
        judged_cohorts.append(
            Cohort(
                stack=stack,
                frame=int(view.phases.frame[rows[0]]),
                rows=rows,
                left=np.bincount(born[rows], minlength=last),
                longest=int(longest[kind]),
                together=bool(together[kind]),
                forward=bool(np.isin(phase, (Phase.FORWARD, Phase.EVALUATION)).mean() > 0.5),
                called=stack != NO_STACK and bool(in_call[stack]),
                looped=bool((phase != Phase.OTHER).mean() > 0.5),
                state=_state(view, rows),
            )
        )
    old = (allocations.born < 0) & (given_up <= moment)
    returned = np.bincount(
        np.maximum(steps.of(given_up[old]), 0),
        weights=allocations.requested_bytes[old],
        minlength=max(last, 1),
    )
    left_out_bytes = int(sizes[largest[_MOST_COHORTS:]].sum())
    return Cohorts(
        event=moment,
        last=last,
        all=tuple(judged_cohorts),
        returned=returned.astype(np.int64),
        left_out=left_out_bytes,
    )


def _keys(view: Attribution) -> NDArray[np.int64]:
    """A number by allocation: its stack, or else the line that the backward pass worked for.

    What is made once beside what a step makes, by one stack, has a number of its own: the first
    matrix product asks for cuBLAS's work buffer too.
    """
    stack = view.device.allocations.stack
    lines = len(view.trace.stacks) + 1 + view.phases.frame
    kinds = np.zeros(len(Category), np.int64)
    for number, kind in enumerate(_STATES, 1):
        kinds[kind] = number
    base = np.where(stack == NO_STACK, lines, stack).astype(np.int64)
    return base * (len(_STATES) + 1) + kinds[view.categories.category]


def _state(view: Attribution, rows: NDArray[np.int64]) -> Category | None:
    """Optimizer state and work buffers are made once and stay: neither is a leak."""
    kind = Category(int(view.categories.category[rows[0]]))
    return kind if kind in _STATES else None


def _given_back_together(
    key: NDArray[np.int64], death: NDArray[np.int64], lived: NDArray[np.int64], count: int
) -> NDArray[np.bool_]:
    """By key: whether the steps at which something older than a step was given back are fewer than
    half of those rows.

    A ring gives back one a step; the end of an epoch gives back all at once.
    """
    older = lived >= 2
    rows = np.bincount(key[older], minlength=count)
    if not older.any():
        return np.zeros(count, np.bool_)
    pairs = np.unique(key[older] * (int(death.max()) + 1) + death[older])
    moments = np.bincount(pairs // (int(death.max()) + 1), minlength=count)
    return np.asarray((rows > 0) & (2 * moments < rows))
