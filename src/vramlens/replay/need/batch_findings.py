"""Findings about the batch: the largest that fits, as a point, a range, or why neither is known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from vramlens.analyses.attribution.remedies_in_use import has_batch_of_one
from vramlens.analyses.failure.first_step.first_step_need import (
    StepBounds,
    bounds_of_first_step,
    only_evaluates,
)
from vramlens.analyses.failure.need import BLOCKS, WHOLE_RUN, Need
from vramlens.analyses.finding import Finding
from vramlens.analyses.leaks.certainty import PATTERN
from vramlens.ground.verdict import Verdict
from vramlens.replay.need.smaller_batch import SPARE, SmallerBatch, largest_share
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution
    from vramlens.replay.need.failure_verdict import ReplayJudgement
    from vramlens.replay.proof import Proven

_BELOW_ALL = 0.99
"""Of a batch: all of it did not fit."""
_TOO_SMALL_TO_BEGIN_WITH = 0.25
"""Of a batch: where so little surely fits and much more may, trying finds the largest sooner."""
_LEAST_SHARE = 0.02
"""Of a batch: less is not advice."""


def batch_that_fits(
    view: Attribution,
    proven: Proven,
    judged: ReplayJudgement,
    *,
    lasting: bool,
) -> Finding | None:
    """The largest batch that fits, where an earlier step completes the failed one; None where
    none does.

    Args:
        lasting: whether steps after the failed one are no larger.
    """
    capacity_bytes = proven.recorded.limit.bytes
    if capacity_bytes is None or judged.projection is None or judged.need.high_bytes is None:
        return None
    if has_batch_of_one(view):
        return None
    batch = largest_share(proven, judged.projection, view, judged.need)
    if batch is None:
        return None
    return _as_point(batch, capacity_bytes, lasting=lasting)


def _as_point(batch: SmallerBatch, capacity_bytes: int, *, lasting: bool) -> Finding:
    peak = f"{format_size(batch.peak_reserved_bytes)} of {format_size(capacity_bytes)}"
    doubt = "" if lasting else "; later steps may need more"
    return Finding(
        id="smaller_batch",
        verdict=Verdict.LIKELY if lasting else Verdict.POSSIBLE,
        title=f"a batch {batch.share:.2f}x this size fits",
        bytes=batch.peak_reserved_bytes,
        evidence=(
            "the same requests were replayed at that batch size; what does not depend on the "
            "batch stays the same",
        ),
        fix=f"reduce the batch to {batch.share:.2f}x its size (rounded down): this step then"
        f" reserves {peak}{doubt}",
    )


def batch_of_first_step(
    view: Attribution, need: Need, capacity_bytes: int | None
) -> Finding | None:
    """The range of the largest batch that fits a first step; None where nothing bounds it."""
    if need.basis not in (BLOCKS, WHOLE_RUN) or need.high_bytes is None or capacity_bytes is None:
        return None
    if has_batch_of_one(view):
        return None
    bounds = bounds_of_first_step(view, view.device.out_of_memory[-1])
    evaluates = only_evaluates(view, view.device.out_of_memory[-1].event)
    if bounds is None:
        return None if evaluates else _not_about_the_batch(need)
    if need.basis == WHOLE_RUN:
        bounds = bounds.with_known(need.low_bytes, need.high_bytes)
    share = int(bounds.surely_fitting_share(int(capacity_bytes * (1 - SPARE))) * 100) / 100
    if evaluates:
        return _of_a_pass(bounds, share, capacity_bytes)
    if share < _LEAST_SHARE:
        return _no_batch_surely_fits(bounds, capacity_bytes)
    state = "" if view.phases.optimizer_ran else ", an optimizer's state (as AdamW's)"
    evidence = (
        "estimated from the blocks that the forward pass finished:"
        f" gradients{state} and the rest of the step are not recorded"
    )
    if need.basis == WHOLE_RUN:
        evidence = "estimated from what the whole run needs, and what of it any batch needs"
    # After whole steps, a pass that is like none of them may not take the batch that they took.
    is_of_other_kind = view.steps.source != PATTERN and len(view.steps) > 1
    verdict = Verdict.POSSIBLE if is_of_other_kind else Verdict.LIKELY
    finding = _as_range(bounds, share, capacity_bytes, evidence)
    return replace(finding, verdict=verdict)


def _of_a_pass(bounds: StepBounds, share: float, capacity_bytes: int) -> Finding | None:
    """The range for a forward pass that no backward pass follows; None where most of the memory is
    what earlier passes left, which their number decides and not this batch.
    """
    if share < _LEAST_SHARE or bounds.low_fixed > bounds.low_growing:
        return None
    evidence = "estimated from the blocks that this forward pass finished"
    return _as_range(bounds, share, capacity_bytes, evidence)


def _as_range(bounds: StepBounds, share: float, capacity_bytes: int, evidence: str) -> Finding:
    highest = min(_BELOW_ALL, bounds.possibly_fitting_share(capacity_bytes))
    at_most_bytes = int(bounds.high_fixed + share * bounds.high_growing)
    peak = f"at most {format_size(at_most_bytes)} of {format_size(capacity_bytes)} (estimated)"
    largest = f"the largest batch that fits is {share:.2f}x to {highest:.2f}x this one"
    fix = f"reduce the batch to {share:.2f}x its size (rounded down): {peak}; {largest}"
    if share < _TOO_SMALL_TO_BEGIN_WITH and highest > 2 * share:
        begin = _first_half_that_may_fit(highest)
        fix = f"{begin}, and half of that if it still fails: {largest} (at {share:.2f}x, {peak})"
    return Finding(
        id="smaller_batch",
        verdict=Verdict.LIKELY,
        title=f"a batch {share:.2f}x this size fits",
        bytes=at_most_bytes,
        evidence=(evidence,),
        fix=fix,
    )


def _first_half_that_may_fit(highest_share: float) -> str:
    """What to do to the batch first: halve it, or as often at once as is needed in any case."""
    halvings = max(1, math.ceil(-math.log2(highest_share)))
    return "halve the batch" if halvings == 1 else f"use 1/{2**halvings} of the batch"


def _no_batch_surely_fits(bounds: StepBounds, capacity_bytes: int) -> Finding:
    fixed, limit = format_size(bounds.high_fixed), format_size(capacity_bytes)
    return Finding(
        id="smaller_batch",
        verdict=Verdict.NOT_A_PROBLEM,
        title=f"a smaller batch may not be enough: parameters, gradients and optimizer state may"
        f" take {fixed} of {limit} at any batch size",
        bytes=bounds.high_fixed,
        evidence=("optimizer state is estimated as two tensors per parameter, as in AdamW",),
    )


def _not_about_the_batch(need: Need) -> Finding:
    """The optimizer's state is as large for any batch."""
    return Finding(
        id="smaller_batch",
        verdict=Verdict.NOT_A_PROBLEM,
        title="a smaller batch may not be enough: optimizer state has the same size at any batch "
        f"size, and this step needs at least {format_size(need.low_bytes)}",
        bytes=need.low_bytes,
    )
