"""A failed request: what its cause and its wall call for."""

from __future__ import annotations

from collections.abc import Iterator

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.extent import Extent
from vramlens.analyses.failure import allocator_retry as retries
from vramlens.analyses.failure import unconsumed_forward as forwards
from vramlens.analyses.failure.failed_request import Failure, Outside
from vramlens.analyses.failure.oom import memory_fraction, settings_variable
from vramlens.analyses.finding import Finding
from vramlens.analyses.memory.fragmentation import Pin
from vramlens.analyses.scene import Scene
from vramlens.ground.allocator_sizes import in_pages
from vramlens.ground.verdict import Verdict
from vramlens.ground.vocabulary import Cause, Wall
from vramlens.units import counted, format_size

_MOST_PINS = 2


def fragmented_request(scene: Scene) -> Iterator[Finding]:
    """The failure whose request would have fitted in one piece."""
    failure, verdict = scene.failure, scene.verdict
    if failure is None or verdict is None or verdict.cause != Cause.FRAGMENTATION:
        return
    pins = scene.fragmentation.pinned_by[:_MOST_PINS]
    yield Finding(
        id="fragmented_request",
        verdict=Verdict.LIKELY,
        title=f"the {format_size(failure.usable_free_bytes)} free for this request is split up by"
        " blocks in use",
        bytes=verdict.requested_bytes,
        place=verdict.place,
        evidence=tuple(_kept_apart(pin) for pin in pins if pin.held_bytes),
        fix="allocate long-lived tensors before short-lived ones, or allocate this large one "
        f"first; then {format_size(verdict.requested_bytes or 0)} fit in space that is now lost to"
        " fragmentation",
        extent=Extent(failure.request.event, holes=failure.usable_ranges),
    )


def _kept_apart(pin: Pin) -> str:
    return (
        f"{counted(pin.blocks, 'block')} from {pin.place} split up {format_size(pin.held_bytes)} "
        f"of free memory; the oldest is {counted(pin.age_events, 'event')} old"
    )


def process_limit(scene: Scene) -> Iterator[Finding]:
    """The failure that the process's own limit caused."""
    failure, verdict = scene.failure, scene.verdict
    if failure is None or verdict is None or verdict.wall != Wall.PROCESS_LIMIT:
        return
    free = format_size(verdict.free_bytes or 0)
    yield Finding(
        id="process_limit",
        verdict=Verdict.PROVEN,
        title=f"The process limit refused it: the device had {free} free",
        bytes=verdict.short_by_bytes,
        fix=_raised_limit(failure, scene.outside),
    )


def _raised_limit(failure: Failure, outside: Outside) -> str:
    needed = failure.reserved_bytes + failure.tried_bytes
    if not outside.total_bytes:
        return (
            "raise the fraction passed to torch.cuda.set_per_process_memory_fraction: this request "
            f"needs a limit of at least {format_size(needed)}"
        )
    fraction = memory_fraction(needed, outside.total_bytes)
    return (
        f"raise the limit with torch.cuda.set_per_process_memory_fraction({fraction}): this "
        f"request needs at least {format_size(needed)}"
    )


def expandable_segments(scene: Scene) -> Iterator[Finding]:
    """What the message's own hint is worth for this failure, as far as sums tell."""
    if scene.failure is not None:
        yield expandable_finding(scene.view, scene.failure, scene.outside)


def allocator_retry(scene: Scene) -> Iterator[Finding]:
    """The failure whose request would succeed now."""
    if scene.failure is not None:
        yield from retries.allocator_retry(scene.view, scene.failure)


def unconsumed_forward(scene: Scene) -> Iterator[Finding]:
    """The forward passes that no backward pass may ever use."""
    if scene.failure is not None:
        yield from forwards.unconsumed_forward(scene.view, scene.failure)


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
        is_limit_known = (
            failure.limit_high_bytes is None or failure.limit_low_bytes == failure.limit_high_bytes
        )
        excess = f" by {format_size(rounded - capacity)}" if is_limit_known else ""
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
