"""The message's own hint, expandable_segments, as far as sums tell whether it helps."""

from __future__ import annotations

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.failure.failed_request import Failure, Outside
from vramlens.analyses.failure.oom import settings_variable
from vramlens.analyses.finding import Finding
from vramlens.ground.allocator_sizes import in_pages
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size


def expandable_finding(view: Attribution, failure: Failure, outside: Outside) -> Finding:
    """What the message's own advice, expandable_segments, is worth for this failure."""
    setting = settings_variable(view.trace)
    needed = failure.live_bytes + failure.request.size_bytes
    rounded = in_pages(needed)
    capacity = _capacity(failure)
    if failure.expandable:
        return Finding(
            id="expandable_segments",
            verdict=Verdict.NOT_A_PROBLEM,
            title="expandable_segments will not help: it was already on",
            bytes=0,
            evidence=("PyTorch prints that hint no matter what the settings are",),
        )
    if capacity is not None and rounded > capacity:
        # The limit of a bare snapshot is known from above only: how much is missing is then not
        # known.
        known = (
            failure.limit_high_bytes is None or failure.limit_low_bytes == failure.limit_high_bytes
        )
        excess = f" by {format_size(rounded - capacity)}" if known else ""
        return Finding(
            id="expandable_segments",
            verdict=Verdict.NOT_A_PROBLEM,
            title=(
                "expandable_segments will not help: even without gaps, the memory in use and "
                f"the request exceed the limit{excess} (in whole pages)"
            ),
            bytes=0,
            evidence=(
                f"{format_size(failure.live_bytes)} in use",
                f"at most {format_size(capacity)} available",
            ),
        )
    if outside.limit_bytes is not None and failure.room_bytes is not None:
        spare = outside.limit_bytes - needed
        evidence = f"the request would fit if no more than {format_size(spare)} stayed in gaps"
    else:
        free = format_size(failure.usable_free_bytes)
        evidence = f"{free} are in gaps between blocks; gaps smaller than a page cannot be returned"
    return Finding(
        id="expandable_segments",
        verdict=Verdict.POSSIBLE,
        title="expandable_segments may or may not help: these numbers do not show whether the "
        "gaps could be used",
        bytes=failure.usable_free_bytes,
        evidence=(evidence,),
        fix=f"try {setting}=expandable_segments:True: {format_size(failure.usable_free_bytes)} in "
        "gaps may become usable, which may or may not be enough"
        if failure.usable_free_bytes
        else None,
    )


def _capacity(failure: Failure) -> int | None:
    """The most that the process could reserve; None where that is not known."""
    limit = failure.limit_high_bytes
    if failure.free_bytes is None:
        return limit
    if limit is not None and failure.free_bytes >= failure.tried_bytes:
        return limit
    on_device = failure.reserved_bytes + failure.free_bytes
    return on_device if limit is None else min(limit, on_device)
