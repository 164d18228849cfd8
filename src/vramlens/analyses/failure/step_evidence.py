"""Whether what repeats are steps of a loop, or parts of one step: layers, solver steps, time
steps, tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.modules import OUTSIDE
from vramlens.analyses.attribution.repeated_modules import modules_by_step
from vramlens.analyses.attribution.training import Training, pass_starts
from vramlens.analyses.leaks.certainty import PATTERN
from vramlens.analyses.leaks.groups import StepLoop
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.trace import NO_STACK

_MANY_PASSES = 8
"""Times the passes of a later step: so many at first are a phase of their own."""
_NUMBER = re.compile(r"(?:^|\.)\d+(?:\.|$)")


def are_steps(view: Attribution) -> bool:
    """Whether the recording tells that the steps are steps, and not what repeats inside of one.

    Marks and optimizers tell. Of a repeating pattern it is known only where each cycle runs a whole
    model: the same modules each time, several alike layers among them, from a loop of the user's
        own.
    """
    if view.steps.source != PATTERN:
        return len(view.steps) > 0
    if len(view.steps) < 3 or StepLoop(view).of_library:
        return False
    cycles = modules_by_step(view)[1:-1]
    if any(cycles):
        return all(modules == cycles[0] for modules in cycles) and any(
            _NUMBER.search(view.modules.paths[module]) for module in cycles[0]
        )
    return _repeats_inside(view)


def repeats_earlier(view: Attribution, event: int) -> bool:
    """Whether the step of an event repeats the steps before it, as far as that is known.

    The last cycle of a pattern goes on to the end of the recording: after a loop that only prepares
    the work, that is the work.
    """
    step = int(view.steps.of(np.array([event]))[0]) if len(view.steps) else 0
    if view.steps.source != PATTERN or not step:
        return view.steps.source != PATTERN
    allocations = view.device.allocations
    rows = np.flatnonzero((view.step == step) & (allocations.born < event))
    is_known = np.isin(allocations.stack[rows], allocations.stack[view.step == step - 1])
    sizes = allocations.requested_bytes[rows]
    return bool(2 * sizes[is_known].sum() >= sizes.sum())


def may_repeat_first_phase(view: Attribution, event: int) -> bool:
    """Whether the first step began with many forward passes, as a rollout or an evaluation does, that
    have not come again by an event: then they met no gradients and no optimizer state yet.
    """
    starts = pass_starts(view.modules, np.flatnonzero(view.modules.marked))
    steps = view.step[starts[view.device.allocations.born[starts] < event]]
    passes = np.bincount(steps[steps >= 0])
    if len(passes) < 2:
        return False
    return bool(passes[0] >= _MANY_PASSES * max(1, int(passes[1:].max())))


def may_be_inside_step(view: Attribution, step_leaks: Sequence[RecordedLeak]) -> bool:
    """Whether what repeats may be turns of a loop inside a training step, of which nobody knows how
    many follow: solver steps, tokens. What surely leaks from turn to turn tells that they are steps.
    """
    if view.steps.source != PATTERN or view.training == Training.ABSENT:
        return False
    return not any(leak.sure for leak in step_leaks)


def leaks_of_steps(view: Attribution, leaks: Sequence[RecordedLeak]) -> list[RecordedLeak]:
    """The leaks that grow with what is known to be steps.

    Without an optimizer, a rollout that collects its observations looks like a leak: of a pattern
    only what modules computed counts, where modules are marked. So do the inner steps of
    meta-learning, all of which the first outer step waits for.
    """
    with_rows = [leak for leak in leaks if leak.rows is not None]
    if not are_steps(view):
        return []
    if view.steps.source == PATTERN and len(view.phases.span_start):
        return []  # backward passes without an optimizer: what they keep, a later one may use
    if view.steps.source != PATTERN or not view.modules.marked.any():
        return with_rows
    return [leak for leak in with_rows if _computed_by_modules(view, leak)]


def _computed_by_modules(view: Attribution, leak: RecordedLeak) -> bool:
    assert leak.rows is not None
    sizes = view.device.allocations.requested_bytes[leak.rows]
    is_inside = view.modules.module[leak.rows] != OUTSIDE
    return bool(2 * sizes[is_inside].sum() >= sizes.sum())


def _repeats_inside(view: Attribution) -> bool:
    """Whether some lines ask several times in the second cycle: alike layers of a whole model."""
    stacks = view.device.allocations.stack[view.step == 1]
    _, times = np.unique(stacks[stacks != NO_STACK], return_counts=True)
    return bool(len(times)) and bool((times > 1).mean() >= 0.2)
