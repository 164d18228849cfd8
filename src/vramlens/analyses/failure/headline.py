"""The answer to a failure in one sentence: what was asked for, what was free, and why it failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vramlens.analyses.failure.failed_request import Failure
from vramlens.analyses.failure.need import Need
from vramlens.analyses.leaks.leak import Leak
from vramlens.ground.failure import Cause, Wall
from vramlens.units import format_size


@dataclass(frozen=True, slots=True)
class HeadlineFacts:
    """What the headline is made of.

    Attributes:
        failure: the request, and what was free.
        wall: what refused it.
        cause: why it came to that.
        leaks: what leaks.
        short_bytes: what it lacked at the wall; None where unknown.
        need: what the step needs; None where that is not known.
        capacity_bytes: what could be reserved; None where unknown.
        is_rough: whether that is known only roughly.
        fits_a_free_block: whether a free block would have held the request.
    """

    failure: Failure
    wall: str
    cause: str | None
    leaks: Sequence[Leak] = ()
    short_bytes: int | None = None
    need: Need | None = None
    capacity_bytes: int | None = None
    is_rough: bool = False
    fits_a_free_block: bool = False


def headline_of(facts: HeadlineFacts) -> str:
    """The verdict in one sentence."""
    wanted = format_size(facts.failure.request.size_bytes)
    reason = _reason(facts)
    why = f"; {reason}" if reason else ""
    return f"Out of memory: tried to allocate {wanted}; {_free_memory(facts)}{why}"


def _free_memory(facts: HeadlineFacts) -> str:
    """What was free for the request: on the GPU where that refused it, and inside the cache."""
    failure = facts.failure
    in_cache = _free_in_cache(failure)
    if failure.free_bytes is None or facts.wall not in (Wall.DEVICE, Wall.OTHER_PROCESS):
        return in_cache
    return f"{format_size(failure.free_bytes)} was free on the GPU, {in_cache.replace(' was', '')}"


def _free_in_cache(failure: Failure) -> str:
    cache = "PyTorch's cache" if failure.pool is None else f"private pool {failure.pool}"
    if not failure.usable_holes:
        return f"nothing was free inside {cache}"
    free = f"{format_size(failure.usable_free_bytes)} was free inside {cache}"
    if failure.usable_holes == 1:
        return free
    return f"{free}, in pieces of at most {format_size(failure.largest_usable_bytes)}"


def _reason(facts: HeadlineFacts) -> str:
    if facts.fits_a_free_block:
        return "one of them would do, and PyTorch's allocator did not look again"
    if facts.cause == Cause.LEAK and facts.leaks:
        return _leak(facts.leaks)
    if facts.cause == Cause.FRAGMENTATION:
        return _would_fit(facts)
    reason = _step_needs(facts) or _shortage(facts)
    if facts.cause == Cause.SPIKE and facts.need is None:
        spike = "this step needs more than twice what any earlier one did"
        return f"{reason}: {spike}" if reason else spike
    return reason


def _leak(leaks: Sequence[Leak]) -> str:
    kept = format_size(sum(leak.bytes for leak in leaks))
    each_step = format_size(sum(leak.bytes_per_step for leak in leaks))
    return f"a leak kept {kept} of earlier steps, {each_step} more each step ({leaks[0].place})"


def _would_fit(facts: HeadlineFacts) -> str:
    """What would fit without holes; "" where the free memory itself says so."""
    if facts.failure.usable_free_bytes >= facts.failure.request.size_bytes:
        return ""
    need, capacity = facts.need, facts.capacity_bytes
    if need is None or need.floor_bytes is None or capacity is None:
        return ""
    floor, limit = format_size(need.floor_bytes), format_size(capacity)
    return f"without holes, the {floor} that this step needs would fit into {limit}"


def _step_needs(facts: HeadlineFacts) -> str:
    """The need of the step beside what there is; "" where nothing is known of it."""
    need, capacity = facts.need, facts.capacity_bytes
    if need is None or need.basis is None or capacity is None:
        return ""
    roughly = "about " if facts.is_rough else ""
    room = "the limit is" if facts.wall == Wall.PROCESS_LIMIT else "there is room for"
    limit = f"and {room} {roughly}{format_size(capacity)}"
    grown = _growth(need)
    if need.peak_reserved_bytes is None:
        return f"this step{grown} needs at least {format_size(need.low_bytes)}, {limit}"
    needed = format_size(need.limit_bytes or need.peak_reserved_bytes)
    return f"this step{grown} needs {needed} to finish, {limit}"


def _growth(need: Need) -> str:
    if need.scale is None or abs(need.scale - 1) <= 0.02:
        return ""
    return f" ({need.scale:.2f} × an earlier one)"


def _shortage(facts: HeadlineFacts) -> str:
    failure = facts.failure
    if failure.pool is not None:
        return "it may use no other memory"
    if facts.short_bytes is None:
        lack = failure.request.size_bytes - failure.usable_free_bytes
        return f"in one piece they would be {format_size(lack)} too few" if lack > 0 else ""
    where = "below this process's limit" if facts.wall == Wall.PROCESS_LIMIT else "on the GPU"
    return f"{format_size(facts.short_bytes)} short {where}"
