"""A failed request: what its cause and its wall call for."""

from __future__ import annotations

from collections.abc import Iterator

from vramlens.analyses.extent import Extent
from vramlens.analyses.failure import allocator_retry as retries
from vramlens.analyses.failure import unconsumed_forward as forwards
from vramlens.analyses.failure.oom import Failure, Outside
from vramlens.analyses.failure.settings_hint import expandable_finding
from vramlens.analyses.finding import Finding
from vramlens.analyses.memory.fragmentation import Pin
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.ground.vocabulary import Cause, Wall
from vramlens.units import counted, format_size

_MOST_PINS = 2
_FRACTION_PARTS = 10_000
"""Fractions of a device's memory are told with four digits, rounded up."""


def fragmented_request(scene: Scene) -> Iterator[Finding]:
    """The failure whose request would have fitted in one piece."""
    failure, verdict = scene.failure, scene.verdict
    if failure is None or verdict is None or verdict.cause != Cause.FRAGMENTATION:
        return
    pins = scene.fragmentation.pinned_by[:_MOST_PINS]
    yield Finding(
        id="fragmented_request",
        verdict=Verdict.LIKELY,
        title=verdict.headline,
        bytes=verdict.requested_bytes,
        place=verdict.place,
        evidence=tuple(_kept_apart(pin) for pin in pins if pin.held_bytes),
        fix="allocate long-lived tensors before short-lived ones, or allocate this large one "
        "first; "
        f"then {format_size(verdict.requested_bytes or 0)} fit in space that is now lost to fragmentation",
        extent=Extent(failure.request.event, holes=failure.usable_ranges),
    )


def _kept_apart(pin: Pin) -> str:
    return (
        f"{counted(pin.blocks, 'block')} from {pin.place} split up "
        f"{format_size(pin.held_bytes)} of free memory; "
        f"the oldest is {counted(pin.age_events, 'event')} old"
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
    fraction = -(-needed * _FRACTION_PARTS // outside.total_bytes) / _FRACTION_PARTS
    return (
        f"raise the limit with torch.cuda.set_per_process_memory_fraction({fraction:.4f}): this "
        "request "
        f"needs at least {format_size(needed)}"
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
