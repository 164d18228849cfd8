"""The answer to a failure in one sentence: what was asked for, what was free, and why it failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vramlens.analyses.failure.failed_request import Failure
from vramlens.analyses.failure.largest_use import LargestUse
from vramlens.analyses.failure.need import Need
from vramlens.analyses.leaks.recorded_leak import RecordedLeak, are_mostly_sure
from vramlens.ground.place import base_name
from vramlens.ground.vocabulary import Cause, Wall
from vramlens.units import counted, format_size

SLIGHT = 0.05
"""Of a batch against an earlier one: less is not worth a word."""


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
        largest_use: the tensor or line that fills the memory; None where there is none.
    """

    failure: Failure
    wall: str
    cause: str | None
    leaks: Sequence[RecordedLeak] = ()
    short_bytes: int | None = None
    need: Need | None = None
    capacity_bytes: int | None = None
    is_rough: bool = False
    fits_a_free_block: bool = False
    largest_use: LargestUse | None = None


def headline_of(facts: HeadlineFacts) -> str:
    """The verdict: what was asked for, what was free, and why that was not enough."""
    request_size = format_size(facts.failure.request.size_bytes)
    sentences = [f"Out of memory: tried to allocate {request_size}", _free_memory(facts)]
    if reason := _reason(facts):
        sentences.append(reason)
    if filled := _largest_use(facts):
        sentences.append(filled)
    return f"{'. '.join(sentences)}."


def _free_memory(facts: HeadlineFacts) -> str:
    """What was free for the request: on the GPU where that refused it, and inside the cache."""
    failure = facts.failure
    cache = "PyTorch's cache" if failure.pool is None else f"Private pool {failure.pool}"
    in_cache = _free_in_cache(failure)
    if failure.free_bytes is None or facts.wall not in (Wall.DEVICE, Wall.OTHER_PROCESS):
        return f"{cache} had {in_cache}"
    on_gpu = format_size(failure.free_bytes)
    return f"The GPU had {on_gpu} free, and {cache.replace('Private', 'private')} had {in_cache}"


def _free_in_cache(failure: Failure) -> str:
    if not failure.usable_holes:
        return "nothing free"
    free = f"{format_size(failure.usable_free_bytes)} free"
    if failure.usable_holes == 1:
        return f"{free} in one block"
    return f"{free}, in blocks of at most {format_size(failure.largest_usable_bytes)}"


def _reason(facts: HeadlineFacts) -> str:
    if facts.fits_a_free_block:
        return "One of these blocks was large enough, but the allocator did not look again"
    if _is_leak(facts):
        return _leak(facts.leaks)
    if facts.cause == Cause.FRAGMENTATION:
        return _would_fit(facts)
    reason = _step_needs(facts) or _shortage(facts)
    if facts.cause == Cause.SPIKE and facts.need is None:
        spike = "This step needs more than twice as much as any earlier step"
        return f"{reason}. {spike}" if reason else spike
    return reason


def _is_leak(facts: HeadlineFacts) -> bool:
    return facts.cause == Cause.LEAK and bool(facts.leaks)


def _leak(leaks: Sequence[RecordedLeak]) -> str:
    leaked_size = format_size(sum(leak.bytes for leak in leaks))
    each_step = leaks[0].per_unit(sum(leak.bytes_per_step for leak in leaks))
    growth = f"leaked {leaked_size}" if are_mostly_sure(leaks) else f"left {leaked_size} behind"
    place = max(leaks, key=lambda leak: leak.bytes).place
    return f"Earlier steps {growth}, {each_step} ({place})"


def _largest_use(facts: HeadlineFacts) -> str:
    """The tensor or the line that fills the memory; "" where it was said to leak, and where the
    memory would be enough in one piece.
    """
    use = facts.largest_use
    if use is None or facts.cause == Cause.FRAGMENTATION:
        return ""
    if facts.capacity_bytes is not None and facts.failure.request.size_bytes > facts.capacity_bytes:
        return ""  # the request alone is too large, whatever is in use
    if _is_leak(facts) and use.place == facts.leaks[0].place:
        return ""
    kind = "one tensor"
    if use.allocations > 1:
        kind = f"from one line, in {counted(use.allocations, 'tensor')}"
    size, in_use = format_size(use.bytes), format_size(use.of_bytes)
    part = f"{'All' if size == in_use else size} of the {in_use} in use is {kind}"
    if use.place is None:
        return f"{part}, whose line is unknown"
    return f"{part} ({replace(use.place, file=base_name(use.place.file) or use.place.file)})"


def _would_fit(facts: HeadlineFacts) -> str:
    """What would fit in one piece."""
    need, capacity = facts.need, facts.capacity_bytes
    if facts.failure.usable_free_bytes >= facts.failure.request.size_bytes:
        return "In one piece, that would be enough"
    if need is None or need.floor_bytes is None or capacity is None:
        return ""
    floor, limit = format_size(need.floor_bytes), format_size(capacity)
    return f"Without gaps, this step needs {floor} at its peak, which would fit in {limit}"


def _step_needs(facts: HeadlineFacts) -> str:
    """The need of the step beside what there is; "" where nothing is known of it."""
    need, capacity = facts.need, facts.capacity_bytes
    if need is None or need.basis is None or capacity is None:
        return ""
    is_open = need.high_bytes is None or need.is_wide
    if is_open and need.low_bytes <= capacity:
        return ""  # so much would have fitted: it says nothing
    roughly = "about " if facts.is_rough else ""
    limit = "the limit is" if facts.wall == Wall.PROCESS_LIMIT else "PyTorch could reserve"
    return (
        f"{need.subject.capitalize()} needs"
        f" {_needed(need)}{_by_settings(need, capacity)}{_growth(need)}; {limit}"
        f" {roughly}{format_size(capacity)}"
    )


def _by_settings(need: Need, capacity: int) -> str:
    """A word on the settings, where what is alive at once would fit: they make the need so large."""
    is_point = need.peak_reserved_bytes is not None and need.floor_bytes is not None
    return " with these settings" if is_point and (need.floor_bytes or 0) <= capacity else ""


def _needed(need: Need) -> str:
    if need.peak_reserved_bytes is not None:
        needed = format_size(need.limit_bytes or need.peak_reserved_bytes)
        return f"{needed} to finish"
    low = format_size(need.low_bytes)
    if need.high_bytes is None or need.is_wide:
        return f"at least {low}"
    return f"between {low} and {format_size(need.high_bytes)} to finish"


def _growth(need: Need) -> str:
    """From which step of another size that was estimated: the ratio is of what goes in, not of memory."""
    if need.scale is None or abs(need.scale - 1) <= SLIGHT:
        return ""
    step = "an earlier step" if need.step is None else f"step {need.step}"
    return f" (estimated from {step}, at {need.scale:.2f}x its batch or inputs)"


def _shortage(facts: HeadlineFacts) -> str:
    failure = facts.failure
    if failure.pool is not None:
        return "The request cannot use memory of other pools"
    if facts.short_bytes is None:
        lack = failure.request.size_bytes - failure.usable_free_bytes
        if lack <= 0:
            return ""
        in_one = "Even in one block, that" if failure.usable_holes > 1 else "That"
        return f"{in_one} is {format_size(lack)} too little"
    short = format_size(facts.short_bytes)
    if facts.wall == Wall.PROCESS_LIMIT:
        return f"The request is {short} over this process's limit"
    return f"The GPU is {short} short"
