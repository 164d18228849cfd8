"""The findings about what refused a request: what gets past it, with the bytes that it brings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from vramlens.analyses.error_text.message_sums import least_request
from vramlens.analyses.error_text.refusal import Refusal
from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.read.oom.oom_text import OomMessage
from vramlens.units import format_size

_FOR_REQUEST = (
    "; that is for this request alone: the rest of the step may need more, and only a recording"
    " shows how much"
)


def wall_findings(refusal: Refusal) -> tuple[Finding, ...]:
    """What gets past the wall, with the bytes that it brings."""
    impossible = tuple(_impossible_request(refusal.message))
    about_wall = _ABOUT_WALL.get(refusal.wall)
    if about_wall is None or (refusal.wall == "device" and impossible):
        return impossible
    finding = about_wall(refusal)
    return impossible if finding is None else (*impossible, finding)


def _impossible_request(message: OomMessage) -> Iterator[Finding]:
    """Yields that no setting or freed memory makes room for so much."""
    limits = [size for size in (message.allowed_bytes, message.total_bytes) if size is not None]
    if message.tried_bytes is not None and limits and least_request(message) > min(limits):
        yield Finding(
            id="request_too_large",
            verdict=Verdict.PROVEN,
            title=(
                f"A single request for {format_size(message.tried_bytes)} exceeds the whole "
                f"{format_size(min(limits))}"
            ),
            bytes=message.tried_bytes,
            fix="look for a wrong shape or split the operation; no setting or freed memory can"
            " make this fit",
        )
    if "more than 1EB" in message.text:
        yield Finding(
            id="request_too_large",
            verdict=Verdict.PROVEN,
            title="The requested size is impossible",
            fix="look for a negative or overflowed shape in the failing line",
        )


def _limit_finding(refusal: Refusal) -> Finding | None:
    message, short = refusal.message, refusal.short_bytes
    if message.allowed_bytes is None:
        return None
    name = "set_per_process_memory_fraction"
    if message.kind == "mps":
        name = "PYTORCH_MPS_HIGH_WATERMARK_RATIO"
    limit = f"The process limit of {format_size(message.allowed_bytes)}"
    if short is not None:
        need = message.allowed_bytes + short + refusal.slack_bytes
        free = ""
        if message.free_bytes is not None:
            free = f" (the device has {format_size(message.free_bytes)} free)"
        return Finding(
            id="process_limit",
            verdict=_verdict_of_sums(message),
            title=f"{limit} refused the request, not the device{free}",
            bytes=short,
            fix=(
                f"raise {name} so that the limit is at least {format_size(need)}, or use"
                f" {_less(refusal, short)}{_FOR_REQUEST}"
            ),
        )
    if message.tried_bytes is None:
        return None
    return Finding(
        id="process_limit",
        verdict=Verdict.LIKELY,
        title=f"{limit} most likely refused the request, not the device",
        bytes=message.tried_bytes,
        fix=f"raise {name} by {format_size(message.tried_bytes)} or more{_FOR_REQUEST}",
    )


def _others_finding(refusal: Refusal) -> Finding | None:
    owners = refusal.owners
    if not owners.others:
        return None
    pid, size = refusal.largest_other
    title = (
        f"Other processes use at least {format_size(owners.others_low)} of this device; "
        "without them, the request would fit"
    )
    fix = f"stop process {pid} (frees {format_size(size)}) or use another GPU"
    verdict = Verdict.PROVEN if owners.how == "named" else Verdict.LIKELY
    return Finding("other_process", verdict, title, owners.others_low, fix=fix)


def _device_finding(refusal: Refusal) -> Finding | None:
    message, short = refusal.message, refusal.short_bytes
    if short is None:
        return None
    segment = format_size(message.tried_bytes or 0)
    return Finding(
        id="device_full",
        verdict=_verdict_of_sums(message),
        title=f"The driver was {refusal.shortage} short for a segment of {segment}",
        bytes=short,
        fix=(
            f"use {_less(refusal, short)} at this moment (smaller batch, checkpointing, no_grad "
            "in evaluation); freed memory counts only when a whole segment is empty"
            f"{_FOR_REQUEST}"
        ),
    )


_ABOUT_WALL: Mapping[str, Callable[[Refusal], Finding | None]] = {
    "process_limit": _limit_finding,
    "other_process": _others_finding,
    "device": _device_finding,
}


def _verdict_of_sums(message: OomMessage) -> Verdict:
    return Verdict.LIKELY if message.cut else Verdict.PROVEN


def _less(refusal: Refusal, short_bytes: int) -> str:
    """How much less to need: a printed sum, and the most that it may really be."""
    size = format_size(short_bytes)
    high_size = format_size(short_bytes + refusal.slack_bytes)
    # What is freed comes in whole segments of 2 MiB and more.
    if refusal.slack_bytes * 100 < short_bytes or high_size == size:
        return f"{size} less"
    return f"{size} less (up to {high_size} with the rounding of the printed numbers)"
