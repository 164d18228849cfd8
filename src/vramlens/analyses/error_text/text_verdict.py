"""What the text of an out-of-memory error proves by itself, what it only suggests, and what it
cannot tell.

Only sums are printed, never the sizes of holes, so a text can refute ``expandable_segments`` but
never promise it, and it cannot name a cause. Printed sizes are rounded; every comparison here
allows for that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vramlens.analyses.error_text.engines import (
    engine_findings,
    engine_ledger,
    instead_of_general_advice,
    with_nccl,
)
from vramlens.analyses.error_text.host_memory import host_findings, host_headline
from vramlens.analyses.error_text.libraries import (
    LIBRARIES,
    VLLM_START,
)
from vramlens.analyses.error_text.message_sums import (
    ProcessShares,
    excluded_causes,
    expandable_verdict,
    least_request,
    ledger_of,
    likely_holes,
    outside_pytorch,
    overflow,
    owners_of,
    room_of,
    shortage,
    wall_of,
)
from vramlens.analyses.error_text.no_memory import (
    NOT_MEMORY,
    not_memory_findings,
    not_memory_headline,
)
from vramlens.analyses.error_text.outside_findings import outside_findings
from vramlens.analyses.error_text.unknowns import unknowns_of
from vramlens.analyses.finding import Finding
from vramlens.analyses.memory.ledger import LedgerRow
from vramlens.ground.verdict import Verdict
from vramlens.read.oom.oom_text import OomMessage
from vramlens.trace.engine_log import EngineLog
from vramlens.units import GIB, MIB, format_size

__all__ = ["WALLS", "LedgerRow", "TextVerdict", "explain_message"]

WALLS = ("process_limit", "device", "other_process", "host", "unknown")
_PREFIX = {"xpu": "torch.xpu", "npu": "torch.npu"}  # of functions, else torch.cuda
_TOOLS = {"xpu": "xpu-smi", "npu": "npu-smi", "hip": "rocm-smi"}  # else nvidia-smi
_SETTINGS = {"hip": "PYTORCH_HIP_ALLOC_CONF", "npu": "PYTORCH_NPU_ALLOC_CONF"}
_CONTEXT_LOW, _CONTEXT_HIGH = (
    200 * MIB,
    1000 * MIB,
)  # what a process holds that only made a CUDA context


@dataclass(frozen=True, slots=True)
class TextVerdict:
    """What one message tells.

    Attributes:
        wall: one of WALLS: what refused the request.
        cause: None: sums cannot tell fragmentation, leak, spike and capacity apart.
        excluded_causes: those of the four that the sums do rule out.
        likely_holes_bytes: what PyTorch reserved and has in no tensor, where that likely is the
            reason; never proven.
        expandable_segments: ``refuted`` | ``undecided`` | None where it does not apply.
        short_by_bytes: what the request lacked, at the driver or below the process's limit; None if
            not known, also where the message breaks off.
        short_slack_bytes: by how much rounding may move it.
        headline: one sentence, the number that matters first.
        ledger: rows that sum exactly to the device's printed total; () when that is unknown or the
            figures disagree.
        findings: the most useful first.
        unknowns: what the text cannot tell, one sentence each.
    """

    wall: str
    cause: str | None
    excluded_causes: tuple[str, ...]
    likely_holes_bytes: int | None
    expandable_segments: str | None
    short_by_bytes: int | None
    short_slack_bytes: int
    headline: str
    ledger: tuple[LedgerRow, ...]
    findings: tuple[Finding, ...]
    unknowns: tuple[str, ...]


def explain_message(
    message: OomMessage, conf: str = "", *, log: EngineLog | None = None
) -> TextVerdict:
    """What a message proves.

    Args:
        conf: the allocator's settings as in ``PYTORCH_ALLOC_CONF``, if known from elsewhere.
        log: what serving engines and NCCL printed of their memory in the same log.
    """
    log = log or EngineLog()
    owners = owners_of(message)
    wall = wall_of(message, owners)
    short, slack = shortage(message, wall)
    hint = expandable_verdict(message, conf)
    ledger, ledger_note = ledger_of(message, owners)
    ledger = with_nccl(ledger, message, log) or engine_ledger(log.budget)
    findings = (
        *not_memory_findings(message),
        *host_findings(message, wall),
        *instead_of_general_advice(
            engine_findings(message, log),
            (
                *_wall_findings(message, wall, short, slack, owners),
                *_expandable_findings(message, conf, hint),
                *outside_findings(message, wall),
            ),
        ),
        *_other_findings(message, wall, owners, ledger),
    )
    return TextVerdict(
        wall=wall,
        cause=None,
        excluded_causes=excluded_causes(message),
        likely_holes_bytes=likely_holes(message, wall),
        expandable_segments=hint,
        short_by_bytes=None if message.cut else short,
        short_slack_bytes=0 if message.cut else slack,
        headline=_headline(message, wall, short, slack, owners),
        ledger=ledger,
        findings=findings,
        unknowns=(*ledger_note, *unknowns_of(message, wall, owners, hint)),
    )


# Words


def _about(size: int, slack: int) -> str:
    return f"{'about ' if slack * 50 > size else ''}{format_size(size)}"


def _up_to(size: int, slack: int) -> str:
    """How much less to need: a printed sum, and the most that it may really be."""
    high_size = format_size(size + slack)
    if slack * 100 < size or high_size == format_size(
        size
    ):  # what is freed comes in whole segments of 2 MiB and more
        return f"{format_size(size)} less"
    return f"{format_size(size)} less (up to {high_size} with the rounding of the printed numbers)"


def _biggest(owners: ProcessShares) -> tuple[int, int]:
    return max(owners.others, key=lambda other: other[1])


def _headline(
    message: OomMessage, wall: str, short: int | None, slack: int, owners: ProcessShares
) -> str:
    """One sentence that begins with the number, or the fact, that changes what the reader does
    next.
    """
    if wall == "host":
        return host_headline(message)
    if message.kind in NOT_MEMORY:
        return not_memory_headline(message)
    if message.kind == "driver" and message.tried_bytes is not None:
        return (
            f"The driver refused {format_size(message.tried_bytes)}; the message has none of "
            "PyTorch's numbers"
        )
    if message.kind == "driver":
        return (
            "The driver reported out of memory without a size; the message has none of "
            "PyTorch's numbers"
        )
    if message.kind == "vllm" and (start := VLLM_START.search(message.text)):
        free, total, share, wanted_size = start.groups()
        return f"{free} of {total} are free, and vLLM wants {wanted_size} ({share} of the GPU) to start"
    if message.kind in ("vllm", "sglang"):
        return f"{LIBRARIES[message.kind]}'s share of the GPU has no memory left for its KV cache"
    if message.kind in LIBRARIES:
        name, could = (
            LIBRARIES[message.kind],
            "may have been" if message.verdict == Verdict.POSSIBLE else "was",
        )
        if message.tried_bytes is None:
            return (
                f"Memory {could} refused to {name}, which allocates outside PyTorch's cache; "
                "the message does not say how much"
            )
        size = format_size(message.tried_bytes)
        return f"{size} {could} refused to {name}, which allocates outside PyTorch's cache"
    tried = message.tried_bytes
    if tried is None:
        return "The message says that memory ran out but prints no size"
    wanted_size = f"{format_size(tried)} wanted"
    free = f"{format_size(message.free_bytes)} free" if message.free_bytes is not None else ""
    of_total = f" of {format_size(message.total_bytes)}" if message.total_bytes is not None else ""
    at_least = "at least " if message.cut else ""
    if holes := likely_holes(message, wall):
        lack = f"; {at_least}{_about(short, slack)} short" if short is not None else ""
        return (
            "Likely fragmentation, or memory cached for another pool or stream: "
            f"{format_size(holes)} reserved by PyTorch is not in use, {format_size(tried)} was "
            f"requested{lack}"
        )
    if wall == "process_limit":
        limit = format_size(message.allowed_bytes or 0)
        room = f", while the device had {free}" if free else ""
        if short is None:
            return (
                f"{format_size(tried)} refused, most likely by this process's limit of "
                f"{limit}{room}"
            )
        return f"{at_least}{_about(short, slack)} over this process's limit of {limit}: {wanted_size}{room}"
    if short is None and free and wall == "unknown":
        why = (
            "the end of the message is missing"
            if message.cut
            else "the printed numbers do not explain it"
        )
        return f"{free}, yet the driver refused {format_size(tried)}: {why}"
    lack = (
        f"{at_least}{_about(short, slack)} short"
        if short is not None
        else "Short by less than the rounding of the printed numbers"
    )
    if wall == "other_process":
        if owners.others:
            pid, process_bytes = _biggest(owners)
            return (
                f"{lack} because process {pid} uses {format_size(process_bytes)} of the device: "
                f"{wanted_size}, {free}"
            )
        return f"{lack} because other processes use the device: {wanted_size}, {free}"
    return (
        f"{lack} on the GPU: {wanted_size}, {free}{of_total}"
        if free
        else f"{wanted_size}{of_total} and refused"
    )


def _wall_findings(
    message: OomMessage, wall: str, short: int | None, slack: int, owners: ProcessShares
) -> tuple[Finding, ...]:
    """What gets past the wall, with the bytes that it brings."""
    findings = []
    limits = [size for size in (message.allowed_bytes, message.total_bytes) if size is not None]
    if message.tried_bytes is not None and limits and least_request(message) > min(limits):
        title = (
            f"A single request for {format_size(message.tried_bytes)} exceeds the whole "
            f"{format_size(min(limits))}"
        )
        fix = "look for a wrong shape or split the operation; no setting or freed memory can make this fit"
        findings.append(
            Finding("request_too_large", Verdict.PROVEN, title, message.tried_bytes, fix=fix)
        )
    if "more than 1EB" in message.text:
        fix = "look for a negative or overflowed shape in the failing line"
        findings.append(
            Finding(
                "request_too_large", Verdict.PROVEN, "The requested size is impossible", fix=fix
            )
        )
    if wall == "process_limit" and short is not None and message.allowed_bytes is not None:
        need = message.allowed_bytes + short + slack
        free = (
            f" (the device has {format_size(message.free_bytes)} free)"
            if message.free_bytes is not None
            else ""
        )
        name = (
            "PYTORCH_MPS_HIGH_WATERMARK_RATIO"
            if message.kind == "mps"
            else "set_per_process_memory_fraction"
        )
        title = f"The process limit of {format_size(message.allowed_bytes)} refused the request, not the device{free}"
        fix = f"raise {name} so that the limit is at least {format_size(need)}, or use {_up_to(short, slack)}"
        findings.append(
            Finding(
                "process_limit",
                Verdict.LIKELY if message.cut else Verdict.PROVEN,
                title,
                short,
                fix=fix,
            )
        )
    elif (
        wall == "process_limit"
        and message.allowed_bytes is not None
        and message.tried_bytes is not None
    ):
        name = (
            "PYTORCH_MPS_HIGH_WATERMARK_RATIO"
            if message.kind == "mps"
            else "set_per_process_memory_fraction"
        )
        title = (
            f"The process limit of {format_size(message.allowed_bytes)} most likely refused the "
            "request, not the device"
        )
        fix = f"raise {name} by {format_size(message.tried_bytes)} or more"
        findings.append(
            Finding("process_limit", Verdict.LIKELY, title, message.tried_bytes, fix=fix)
        )
    elif wall == "other_process" and owners.others:
        pid, size = _biggest(owners)
        title = (
            f"Other processes use at least {format_size(owners.others_low)} of this device; "
            "without them, the request would fit"
        )
        fix = f"stop process {pid} (frees {format_size(size)}) or use another GPU"
        verdict = Verdict.PROVEN if owners.how == "named" else Verdict.LIKELY
        findings.append(Finding("other_process", verdict, title, owners.others_low, fix=fix))
    elif wall == "device" and short is not None and not findings:
        least = "at least " if message.cut else ""
        lacking = f"{least}{_about(short, slack)}"
        segment = format_size(message.tried_bytes or 0)
        title = f"The driver was {lacking} short for a segment of {segment}"
        fix = (
            f"use {_up_to(short, slack)} at this moment (smaller batch, checkpointing, no_grad "
            "in evaluation); freed memory counts only when a whole segment is empty"
        )
        findings.append(
            Finding(
                "device_full",
                Verdict.LIKELY if message.cut else Verdict.PROVEN,
                title,
                short,
                fix=fix,
            )
        )
    return tuple(findings)


def _expandable_findings(message: OomMessage, conf: str, hint: str | None) -> tuple[Finding, ...]:
    """What the message's own hint is worth."""
    if hint is None or message.live_bytes is None:
        return ()
    room, _ = room_of(message)
    evidence = [f"{format_size(message.live_bytes)} is in use"]
    if room is not None:
        evidence.append(f"PyTorch could use {format_size(room)} without any fragmentation")
    if hint == "refuted" and not overflow(message, least_request(message)) > 0:
        title = "expandable_segments will not help: it was already on (the message always prints this hint)"
        return (Finding("expandable_segments", Verdict.PROVEN, title, 0, evidence=(conf,)),)
    if hint == "refuted":
        over = format_size(overflow(message, least_request(message)))
        title = f"expandable_segments will not help: even without fragmentation it would be at least {over} too much"
        proven = overflow(message, 1) > 0  # whatever the size of segments is set to
        if not proven:
            evidence.append("this assumes a request with segments of the default size")
        return (
            Finding(
                "expandable_segments",
                Verdict.PROVEN if proven else Verdict.LIKELY,
                title,
                0,
                evidence=tuple(evidence),
            ),
        )
    holes = max(0, (message.reserved_bytes or 0) - (message.allocated_bytes or 0))
    has_reserved = message.reserved_bytes is not None
    named = re.search(r"PYTORCH_(?:[A-Z]{2,5}_)?ALLOC_CONF(?==)", message.text)
    setting = named[0] if named else _SETTINGS.get(message.kind, "PYTORCH_CUDA_ALLOC_CONF")
    where = (
        f"{format_size(holes)} is in free blocks of unknown size"
        if has_reserved
        else "the message does not say how much is in free blocks"
    )
    title = f"expandable_segments may help: {where}"
    fix = f"try {setting}=expandable_segments:True: {where}"
    return (
        Finding(
            "expandable_segments",
            Verdict.POSSIBLE,
            title,
            holes or None,
            evidence=tuple(evidence),
            fix=fix,
        ),
    )


def _other_findings(
    message: OomMessage, wall: str, owners: ProcessShares, ledger: tuple[LedgerRow, ...]
) -> tuple[Finding, ...]:
    """What else the figures show: memory outside PyTorch, stray contexts, memory that nobody
    names.
    """
    findings = []
    total, live = message.total_bytes, message.live_bytes
    if (
        total is not None
        and live is not None
        and live > total + message.slack("total_bytes", "allocated_bytes")
    ):
        title = f"PyTorch holds {format_size(live)} on a device of {format_size(total)}: part of it is in host memory"
        fix = "turn off the driver's system memory fallback (Windows, WSL) to fail early, and use less memory"
        findings.append(Finding("oversubscribed", Verdict.PROVEN, title, live - total, fix=fix))
    if (
        wall == "unknown"
        and not message.cut
        and message.free_bytes is not None
        and message.tried_bytes is not None
    ):
        title = "Enough was free right afterwards: others used it for a moment, or the host, WSL or a VM set a limit"
        fix = "run it again and watch GPU memory with `vramlens top` and host memory with `free -h`"
        findings.append(Finding("free_but_refused", Verdict.POSSIBLE, title, fix=fix))
    elif (
        wall == "unknown"
        and total is not None
        and message.free_bytes is None
        and message.tried_bytes is not None
    ):
        fix = f"look at {_TOOLS.get(message.kind, 'nvidia-smi')}: what is free, and what uses the rest"
        findings.append(
            Finding(
                "free_not_printed",
                Verdict.POSSIBLE,
                "The message does not say how much was free",
                fix=fix,
            )
        )
    outside = outside_pytorch(message, owners)
    if outside:
        rounding = message.slack("process_bytes", "reserved_bytes")
        outside_parts = (
            "other Metal allocations" if message.kind == "mps" else "context, libraries, NCCL"
        )
        title = f"{_about(outside, rounding)} of this process is outside PyTorch ({outside_parts})"
        fix = (
            "Metal uses it, and torch.mps.empty_cache() cannot free it: use less memory"
            if message.kind == "mps"
            else "free memory outside PyTorch's cache: fewer process groups, streams or "
            "libraries; empty_cache() frees none of it"
        )
        verdict = Verdict.PROVEN if owners.how == "named" and outside > rounding else Verdict.LIKELY
        findings.append(
            Finding("outside_pytorch", verdict, title, outside, fix=fix if outside > GIB else None)
        )
    contexts = [pid for pid, size in owners.others if _CONTEXT_LOW <= size <= _CONTEXT_HIGH]
    if len(contexts) >= 2:
        context_bytes = sum(size for pid, size in owners.others if pid in contexts)
        title = f"{len(contexts)} processes have only a CUDA context here, {format_size(context_bytes)} in total"
        fix = "if they are ranks of this job: torch.cuda.set_device(local_rank) before any other CUDA call"
        findings.append(Finding("stray_context", Verdict.POSSIBLE, title, context_bytes, fix=fix))
    unnamed = (
        sum(row.bytes for row in ledger if row.kind == "unknown")
        if message.free_bytes is not None
        else 0
    )
    if (
        live is not None
        and owners.own_bytes is None
        and unnamed > 2 * GIB
        and wall != "process_limit"
    ):
        title = f"{format_size(unnamed)} is used by something that the message does not name"
        fix = f"look at {_TOOLS.get(message.kind, 'nvidia-smi')}: other processes, or this one outside PyTorch"
        findings.append(Finding("unnamed_memory", Verdict.LIKELY, title, unnamed, fix=fix))
    if "driver error" in message.text:
        title = "With expandable_segments, PyTorch uses driver calls that can fail even if memory is free"
        fix = "try without expandable_segments (WSL and Jetson sometimes refuse it)"
        findings.append(Finding("driver_calls", Verdict.POSSIBLE, title, fix=fix))
    if (
        message.live_bytes is not None
        and message.kind not in ("mps", "npu")
        and message.reserved_bytes is not None
    ):
        call = f"{_PREFIX.get(message.kind, 'torch.cuda')}.empty_cache()"
        title = f"{call} before it will not help: PyTorch had already released every empty segment"
        findings.append(Finding("empty_cache", Verdict.LIKELY, title, 0))
    return tuple(findings)
