"""Findings about the batch: the largest that fits, as a point, a range, or why neither is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramlens.analyses.failure.first_step_need import StepBounds, bounds_of_first_step
from vramlens.analyses.failure.need import BLOCKS, Need
from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.replay.need.smaller_batch import SmallerBatch, largest_share
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution
    from vramlens.replay.need.step_need import Projection
    from vramlens.replay.proof import Proven

_BELOW_ALL = 0.99
"""Of a batch: all of it did not fit."""
_LEAST_SHARE = 0.02
"""Of a batch: less is no advice."""


def batch_that_fits(
    view: Attribution, proven: Proven, projection: Projection, capacity_bytes: int | None
) -> Finding | None:
    """The largest batch that fits, where an earlier step completes the failed one; None where
    none does.
    """
    if capacity_bytes is None:
        return None
    batch = largest_share(proven, projection, view)
    if batch is None:
        return None
    return _as_point(batch, capacity_bytes, lasting=projection.tells_what_follows)


def _as_point(batch: SmallerBatch, capacity_bytes: int, *, lasting: bool) -> Finding:
    peak = f"{format_size(batch.peak_reserved_bytes)} of {format_size(capacity_bytes)}"
    doubt = "" if lasting else "; a later step may be larger"
    return Finding(
        id="smaller_batch",
        verdict=Verdict.LIKELY if lasting else Verdict.POSSIBLE,
        title=f"{batch.share:.0%} of this batch fit: {peak}",
        bytes=batch.peak_reserved_bytes,
        evidence=(
            "the same requests at that scale, replayed; what does not grow with the batch stays",
        ),
        fix=f"make the batch {batch.share:.2f} × as large, rounded down: {peak} reserved{doubt}",
    )


def batch_of_first_step(
    view: Attribution, need: Need, capacity_bytes: int | None
) -> Finding | None:
    """The range of the largest batch that fits a first step; None where nothing bounds it."""
    if need.basis != BLOCKS or capacity_bytes is None:
        return None
    bounds = bounds_of_first_step(view, view.device.out_of_memory[-1])
    if bounds is None:
        return _not_about_the_batch(need)
    share = int(bounds.surely_fitting_share(capacity_bytes) * 100) / 100
    if share < _LEAST_SHARE:
        return _no_batch_surely_fits(bounds, capacity_bytes)
    return _as_range(bounds, share, capacity_bytes)


def _as_range(bounds: StepBounds, share: float, capacity_bytes: int) -> Finding:
    highest = min(_BELOW_ALL, bounds.possibly_fitting_share(capacity_bytes))
    most = int(bounds.high_fixed + share * bounds.high_growing)
    peak = f"at most {format_size(most)} of {format_size(capacity_bytes)} (estimated)"
    largest = f"the largest that fits is {share:.2f} to {highest:.2f} × this one"
    return Finding(
        id="smaller_batch",
        verdict=Verdict.LIKELY,
        title=f"{share:.0%} of this batch fit: {peak}; {largest}",
        bytes=most,
        evidence=(
            "estimated from the blocks that the first forward pass had done: gradients, AdamW's"
            " state and the rest of the step are not recorded",
        ),
        fix=f"make the batch {share:.2f} × as large, rounded down: {peak}; {largest}",
    )


def _no_batch_surely_fits(bounds: StepBounds, capacity_bytes: int) -> Finding:
    fixed, limit = format_size(bounds.high_fixed), format_size(capacity_bytes)
    return Finding(
        id="smaller_batch",
        verdict=Verdict.NOT_A_PROBLEM,
        title=f"no smaller batch surely fits: parameters, gradients and the optimizer's state may"
        f" take {fixed} of {limit} for any batch",
        bytes=bounds.high_fixed,
        evidence=("two tensors a parameter are counted as state, as AdamW keeps",),
    )


def _not_about_the_batch(need: Need) -> Finding | None:
    """The optimizer's state is as large for any batch."""
    return Finding(
        id="smaller_batch",
        verdict=Verdict.NOT_A_PROBLEM,
        title="how far a smaller batch helps is not known: the optimizer's state is as large for any"
        f" batch, and at least {format_size(need.low_bytes)} are needed",
        bytes=need.low_bytes,
    )
