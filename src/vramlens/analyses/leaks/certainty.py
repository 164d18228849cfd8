"""Verdicts: how certain so many steps of one rhythm make a leak, and what stands against it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.repeated_modules import (
    are_layers,
    are_turns_of_one_pass,
    follow_other_modules,
)
from vramlens.analyses.attribution.steps import PATTERN as PATTERN
from vramlens.analyses.attribution.training import Training, optimizer_works
from vramlens.analyses.leaks.evidence import (
    LATEST_FIRST,
    OLDEST_FIRST,
    OUTLIVED,
    calls_in_common,
    captured,
    kept_share,
    loop_ended,
)
from vramlens.analyses.leaks.groups import CohortGroup, StepLoop
from vramlens.analyses.leaks.rhythm import EVERY, IRREGULAR, PERIODIC, Rhythm
from vramlens.ground.verdict import Verdict
from vramlens.units import MIB

GRAPH, COPY, SIGN, RESULT = "a whole pass", "a copy of the model", "a sign", "one result"
_NEEDED: dict[tuple[str, str], tuple[int | None, int, int]] = {
    (EVERY, GRAPH): (8, 5, 4),
    (EVERY, COPY): (None, 6, 3),
    (EVERY, SIGN): (None, 9, 4),
    (EVERY, RESULT): (None, 128, 4),
    (PERIODIC, GRAPH): (30, 10, 6),
    (PERIODIC, COPY): (None, 6, 3),
    (PERIODIC, SIGN): (None, 12, 6),
    (PERIODIC, RESULT): (None, 128, 6),
    (IRREGULAR, GRAPH): (60, 20, 8),
    (IRREGULAR, COPY): (None, 8, 4),
    (IRREGULAR, SIGN): (None, 30, 8),
    (IRREGULAR, RESULT): (None, 128, 8),
}
"""By rhythm, and what is kept: how many steps make it proven, likely and possible; None where steps
alone never do.

Nothing keeps the activations of a whole pass on purpose. One result a step is what a buffer or an
epoch's list keeps,
too, until it is full or emptied: windows of 100 are common, so that fewer than 128 say nothing,
unless there is a sign beside them (see leak_evidence).
"""
_WHOLE_PASS = 0.5
"""A kept graph keeps more than this of the blocks of its pass (0.84 in the shared recordings); a
cache of keys and values, or the features of some layers, less.
"""
_FEWEST_SIZES = 3
_FILLED = 0.2
"""What takes this much of the memory that ran out is proven by that."""
_LARGE_BYTES = 100 * MIB
_LARGE_SHARE = 0.2
"""What is kept in a window on purpose is small beside the model."""


def keeps_a_pass(view: Attribution, loop: StepLoop, group: CohortGroup, first: int) -> bool:
    """Whether most of what a pass through the model asked for stays, as a graph's activations
    do.
    """
    parts = [cohort for cohort in group.cohorts if cohort.forward and cohort.called]
    rows = np.concatenate([cohort.rows[view.step[cohort.rows] >= first] for cohort in parts])
    return kept_share(view, rows, np.array(loop.stacks_beside(parts), np.int64)) > _WHOLE_PASS


@dataclass(frozen=True, slots=True)
class Sign:
    """One sign that tells a leak from a buffer that has not filled yet, the doubt that remains, and
    whether it is only that much is kept.
    """

    evidence: str
    doubt: str
    is_of_size: bool = False


_OF_FAILURE = Sign(
    "it used a fifth or more of the memory that ran out",
    "a buffer of that size looks the same",
    is_of_size=True,
)
_LARGE = Sign(
    "it is 100 MiB or more, and at least a fifth of all memory in use between steps",
    "a buffer of that size that is not full yet looks the same",
    is_of_size=True,
)
_HELD_BY_GRAPH = Sign(
    "no object of the program leads to it, so an autograd graph keeps it",
    "a graph that a later backward pass uses looks the same",
)
_CAPTURED = Sign(
    "it comes from the middle of a pass, where similar layers freed theirs within the step",
    "a hook that keeps only the last few, and is not full yet, looks the same",
)
_OUTLIVED = Sign(
    "it is still there after the loop's own variables are gone, so none of them keeps it",
    "a buffer that lives longer than the loop and is not full yet looks the same",
)
_LATEST_FIRST = Sign(
    "it was freed with the model at the very end, newest first: a list kept it all that time",
    "a list that a longer run would have emptied looks the same",
)


def signs_of(
    view: Attribution,
    group: CohortGroup,
    rows: NDArray[np.int64],
    moment: int,
    fate: str | None,
    *,
    filled: bool,
    held_by_graph: bool = False,
) -> list[Sign]:
    """What tells it from a buffer that has not filled yet; none where nothing does."""
    total = int(view.device.allocations.requested_bytes[rows].sum())
    large = _is_large(total, int(view.device.requested_curve[moment]))
    largest = group.cohorts[0]
    can_be_captured = largest.called and view.steps.source != PATTERN
    is_captured = can_be_captured and captured(view, largest.stack, rows)
    signs = (
        (held_by_graph, _HELD_BY_GRAPH),
        (filled, _OF_FAILURE),
        (is_captured, _CAPTURED),
        (fate == OUTLIVED, _OUTLIVED),
        (fate == LATEST_FIRST, _LATEST_FIRST),
        (large and fate != OLDEST_FIRST, _LARGE),
    )
    return [sign for holds, sign in signs if holds]


def fills_memory(view: Attribution, size_bytes: int) -> bool:
    """Whether bytes are much of the memory that ran out."""
    return size_bytes >= _FILLED * view.device.requested.peak_bytes


def _is_large(size_bytes: int, alive_bytes: int) -> bool:
    return size_bytes >= max(_LARGE_BYTES, _LARGE_SHARE * alive_bytes)


def steps_until_large(rhythm: Rhythm, rate: float, size_bytes: int, alive_bytes: int) -> int | None:
    """How many more steps make it large, and many enough for that to count, if it goes on; None
    where they do not.
    """
    if rate <= 0:
        return None
    more = max(
        (_NEEDED[rhythm.kind, SIGN][1] - rhythm.steps) * rhythm.apart,
        math.ceil((_LARGE_BYTES - size_bytes) / rate),
        1,
    )
    grown = round(more * rate)
    return more if _is_large(size_bytes + grown, alive_bytes + grown) else None


_MICRO_BATCHES = (
    "no optimizer ran between these steps, and the micro-batches of one step look the same"
)
_NO_BEGINNING = (
    "the steps are only a repeating pattern, and the recording does not include the start of the "
    "program: they may be parts of one step (micro-batches, tokens, layers)"
)
_PATTERN_OF_MICRO_BATCHES = (
    "the steps are only a repeating pattern without an optimizer, and the micro-batches of one "
    "step look the same"
)
_NO_BACKWARD = (
    "no backward pass has run so far: repetitions inside one training step (time steps, tokens)"
    " keep their memory until it does"
)
_PATTERN_OF_TOKENS = (
    "no optimizer works here, so what repeats may be the tokens of one text or the turns of one "
    "episode, whose memory is released when that ends"
)


def most_by_pattern(
    view: Attribution, fate: str | None, *, graph: bool, filled: bool
) -> tuple[Verdict, str]:
    """The most certain verdict that steps allow which only a repeating pattern tells apart, and why
    it is no more.

    Layers, tokens, micro-batches and the steps of an environment repeat, too, and keep what their
    one step needs.
    """
    is_lone_graph = graph and fate is None and not filled
    if view.steps.source != PATTERN:
        if is_lone_graph and not optimizer_works(view.trace, view.phases):
            return Verdict.LIKELY, _MICRO_BATCHES
        return Verdict.PROVEN, ""
    if view.device.reserved.base_bytes:
        return Verdict.POSSIBLE, _NO_BEGINNING
    if (
        fate is None
        and view.training == Training.UNKNOWN
        and (are_turns_of_one_pass(view) or (not filled and follow_other_modules(view)))
    ):
        return Verdict.POSSIBLE, _NO_BACKWARD
    if is_lone_graph:
        return Verdict.LIKELY, _PATTERN_OF_MICRO_BATCHES
    if not graph:
        return Verdict.POSSIBLE, _PATTERN_OF_TOKENS
    return Verdict.PROVEN, ""


def inside_one_call(view: Attribution) -> bool:
    """Whether what repeats lies inside of one module's call, so that it may be the layers of a
    single pass.
    """
    if view.steps.source != PATTERN:
        return False
    if are_layers(view):
        return True
    nothing, moment = np.zeros(0, np.int64), int(view.steps.starts[-1]) - 1
    return calls_in_common(view) > 1 and not loop_ended(view, nothing, moment)


def verdict_of_steps(rhythm: Rhythm, subject: str) -> tuple[Verdict | None, int | None]:
    """The verdict that so many steps allow, and how many more make it likely; None below all of
    them.

    Args:
        subject: GRAPH, COPY, SIGN or RESULT.
    """
    proven, likely, possible = _NEEDED[rhythm.kind, subject]
    steps = min(rhythm.steps, rhythm.outlived + 2)
    if proven is not None and steps >= proven:
        return Verdict.PROVEN, None
    if steps >= likely:
        return Verdict.LIKELY, None
    needs_steps = (likely - steps) * rhythm.apart
    return (Verdict.POSSIBLE, needs_steps) if steps >= possible else (None, None)


def one_size_a_step(sizes: NDArray[np.int64], born: NDArray[np.int64]) -> bool:
    """Whether no two steps left blocks of one size."""
    pairs = np.unique(np.stack((sizes, born)), axis=1)
    return len(np.unique(born)) >= _FEWEST_SIZES and len(np.unique(pairs[0])) == pairs.shape[1]
