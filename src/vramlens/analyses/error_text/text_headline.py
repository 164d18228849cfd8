"""The headline of an error's text: the number, or the fact, that changes what the reader does
next.
"""

from __future__ import annotations

from vramlens.analyses.error_text.host_memory import host_headline
from vramlens.analyses.error_text.libraries import LIBRARIES, VLLM_START
from vramlens.analyses.error_text.message_sums import likely_holes
from vramlens.analyses.error_text.no_memory import NOT_MEMORY, not_memory_headline
from vramlens.analyses.error_text.refusal import Refusal
from vramlens.ground.verdict import Verdict
from vramlens.read.oom.oom_text import OomMessage
from vramlens.units import format_size


def headline_of(refusal: Refusal) -> str:
    """The request first, then the number, or the fact, that matters most, in whole sentences."""
    text = _headline(refusal)
    return text if text.endswith(".") else f"{text}."


def _headline(refusal: Refusal) -> str:
    message = refusal.message
    if refusal.wall == "host":
        return host_headline(message)
    if message.kind in NOT_MEMORY:
        return not_memory_headline(message)
    if message.kind == "driver":
        return _driver_headline(message)
    if message.kind in ("vllm", "sglang"):
        return _engine_headline(message)
    if message.kind in LIBRARIES:
        return _library_headline(message)
    if message.tried_bytes is None:
        return "Out of memory; the message prints no size"
    tried = format_size(message.tried_bytes)
    return ". ".join(filter(None, (f"{OPENING} {tried}", _reason(refusal))))


OPENING = "Out of memory: tried to allocate"
"""As of recordings."""


def _driver_headline(message: OomMessage) -> str:
    no_numbers = "The message has none of PyTorch's numbers"
    if message.tried_bytes is None:
        return f"Out of memory, reported by the driver without a size. {no_numbers}"
    return f"{OPENING} {format_size(message.tried_bytes)} from the driver. {no_numbers}"


def _engine_headline(message: OomMessage) -> str:
    start = VLLM_START.search(message.text) if message.kind == "vllm" else None
    if start is None:
        return (
            f"Out of memory: {LIBRARIES[message.kind]}'s share of the GPU has nothing left for its"
            " KV cache"
        )
    free, total, share, wanted_size = start.groups()
    return (
        f"Out of memory: {free} of {total} are free, and vLLM wants {wanted_size} ({share} of the"
        " GPU) to start"
    )


def _library_headline(message: OomMessage) -> str:
    could = "may have been" if message.verdict == Verdict.POSSIBLE else "was"
    outside = f"refused to {LIBRARIES[message.kind]}, which allocates outside PyTorch's cache"
    if message.tried_bytes is None:
        return f"Out of memory: memory {could} {outside}. The message does not say how much"
    return f"Out of memory: {format_size(message.tried_bytes)} {could} {outside}"


def _reason(refusal: Refusal) -> str:
    """Why the request was refused, with the numbers; "" where the message has none."""
    message, wall = refusal.message, refusal.wall
    free = f"{format_size(message.free_bytes)} free" if message.free_bytes is not None else ""
    holes = likely_holes(message, wall)
    if holes:
        return _holes_reason(refusal, holes)
    if wall == "process_limit":
        return _limit_reason(refusal, free)
    if not refusal.shortage and free and wall == "unknown":
        return f"The GPU had {free}, yet the driver refused it: {_why_unknown(message)}"
    if wall == "other_process":
        return f"{_others_use(refusal)}, and the GPU had {free}: {_lack(refusal)}"
    of_total = f" of {format_size(message.total_bytes)}" if message.total_bytes is not None else ""
    if not free:
        return f"The message does not say how much{of_total} was free" if of_total else ""
    return f"The GPU had {free}{of_total}: {_lack(refusal)}"


def _holes_reason(refusal: Refusal, holes: int) -> str:
    lack = f". The GPU was {refusal.shortage} short" if refusal.shortage else ""
    return (
        f"{format_size(holes)} reserved by PyTorch is not in use: likely fragmentation, or memory"
        f" cached for another pool or stream{lack}"
    )


def _limit_reason(refusal: Refusal, free: str) -> str:
    limit = f"this process's limit of {format_size(refusal.message.allowed_bytes or 0)}"
    room = f", while the GPU had {free}" if free else ""
    if not refusal.shortage:
        return f"Most likely {limit} refused it{room}"
    return f"The request is {refusal.shortage} over {limit}{room}"


def _lack(refusal: Refusal) -> str:
    if not refusal.shortage:
        return "short by less than the rounding of the printed numbers"
    return f"{refusal.shortage} short"


def _why_unknown(message: OomMessage) -> str:
    if message.cut:
        return "the end of the message is missing"
    return "the printed numbers do not explain it"


def _others_use(refusal: Refusal) -> str:
    if not refusal.owners.others:
        return "Other processes use the GPU"
    pid, process_bytes = refusal.largest_other
    return f"Process {pid} uses {format_size(process_bytes)} of the GPU"
