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
    """One sentence that begins with the number, or the fact, that matters first."""
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
        return "The message says that memory ran out but prints no size"
    return _request_headline(refusal, message.tried_bytes)


def _driver_headline(message: OomMessage) -> str:
    no_numbers = "the message has none of PyTorch's numbers"
    if message.tried_bytes is None:
        return f"The driver reported out of memory without a size; {no_numbers}"
    return f"The driver refused {format_size(message.tried_bytes)}; {no_numbers}"


def _engine_headline(message: OomMessage) -> str:
    start = VLLM_START.search(message.text) if message.kind == "vllm" else None
    if start is None:
        return f"{LIBRARIES[message.kind]}'s share of the GPU has no memory left for its KV cache"
    free, total, share, wanted_size = start.groups()
    return f"{free} of {total} are free, and vLLM wants {wanted_size} ({share} of the GPU) to start"


def _library_headline(message: OomMessage) -> str:
    could = "may have been" if message.verdict == Verdict.POSSIBLE else "was"
    outside = f"refused to {LIBRARIES[message.kind]}, which allocates outside PyTorch's cache"
    if message.tried_bytes is None:
        return f"Memory {could} {outside}; the message does not say how much"
    return f"{format_size(message.tried_bytes)} {could} {outside}"


def _request_headline(refusal: Refusal, tried_bytes: int) -> str:
    message, wall = refusal.message, refusal.wall
    wanted_size = f"{format_size(tried_bytes)} wanted"
    free = f"{format_size(message.free_bytes)} free" if message.free_bytes is not None else ""
    holes = likely_holes(message, wall)
    if holes:
        return _holes_headline(refusal, holes, tried_bytes)
    if wall == "process_limit":
        return _limit_headline(refusal, tried_bytes, free)
    if not refusal.shortage and free and wall == "unknown":
        return f"{free}, yet the driver refused {format_size(tried_bytes)}: {_why_unknown(message)}"
    lack = _lack(refusal)
    if wall == "other_process":
        return f"{lack} because {_others_use(refusal)}: {wanted_size}, {free}"
    of_total = f" of {format_size(message.total_bytes)}" if message.total_bytes is not None else ""
    if not free:
        return f"{wanted_size}{of_total} and refused"
    return f"{lack} on the GPU: {wanted_size}, {free}{of_total}"


def _holes_headline(refusal: Refusal, holes: int, tried_bytes: int) -> str:
    lack = f"; {refusal.shortage} short" if refusal.shortage else ""
    return (
        f"Likely fragmentation, or memory cached for another pool or stream: {format_size(holes)} "
        f"reserved by PyTorch is not in use, {format_size(tried_bytes)} was requested{lack}"
    )


def _limit_headline(refusal: Refusal, tried_bytes: int, free: str) -> str:
    limit = f"this process's limit of {format_size(refusal.message.allowed_bytes or 0)}"
    room = f", while the device had {free}" if free else ""
    if not refusal.shortage:
        return f"{format_size(tried_bytes)} refused, most likely by {limit}{room}"
    return f"{refusal.shortage} over {limit}: {format_size(tried_bytes)} wanted{room}"


def _lack(refusal: Refusal) -> str:
    if not refusal.shortage:
        return "Short by less than the rounding of the printed numbers"
    return f"{refusal.shortage} short"


def _why_unknown(message: OomMessage) -> str:
    if message.cut:
        return "the end of the message is missing"
    return "the printed numbers do not explain it"


def _others_use(refusal: Refusal) -> str:
    if not refusal.owners.others:
        return "other processes use the device"
    pid, process_bytes = refusal.largest_other
    return f"process {pid} uses {format_size(process_bytes)} of the device"
