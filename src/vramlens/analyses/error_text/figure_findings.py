"""What else the figures of an error's text show: memory outside PyTorch, stray contexts, memory
that nobody names.
"""

from __future__ import annotations

from vramlens.analyses.error_text.message_sums import ProcessShares, outside_pytorch
from vramlens.analyses.error_text.refusal import Refusal, about
from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.ground.vocabulary import LedgerRow
from vramlens.read.oom.oom_text import OomMessage
from vramlens.units import GIB, MIB, format_size

_PREFIX = {"xpu": "torch.xpu", "npu": "torch.npu"}  # of functions, else torch.cuda
_TOOLS = {"xpu": "xpu-smi", "npu": "npu-smi", "hip": "rocm-smi"}  # else nvidia-smi
_CONTEXT_LOW, _CONTEXT_HIGH = 200 * MIB, 1000 * MIB
"""What a process holds that only made a CUDA context."""


def figure_findings(refusal: Refusal, ledger: tuple[LedgerRow, ...]) -> tuple[Finding, ...]:
    """What the figures show beside the wall."""
    message, owners = refusal.message, refusal.owners
    findings = (
        _oversubscribed(message),
        _unexplained(refusal),
        # The limit is about what PyTorch reserves: what lies outside of it does not count.
        None if refusal.wall == "process_limit" else _outside_pytorch(message, owners),
        _stray_contexts(owners),
        _unnamed_memory(refusal, ledger),
        _driver_calls(message),
        _empty_cache(message),
    )
    return tuple(finding for finding in findings if finding is not None)


def _oversubscribed(message: OomMessage) -> Finding | None:
    total, live = message.total_bytes, message.live_bytes
    if total is None or live is None:
        return None
    if live <= total + message.slack("total_bytes", "allocated_bytes"):
        return None
    return Finding(
        id="oversubscribed",
        verdict=Verdict.PROVEN,
        title=f"PyTorch holds {format_size(live)} on a device of {format_size(total)}: part of it"
        " is in host memory",
        bytes=live - total,
        fix="turn off the driver's system memory fallback (Windows, WSL) to fail early, and use"
        " less memory",
    )


def _unexplained(refusal: Refusal) -> Finding | None:
    """A refusal that the printed figures do not explain, or that they leave out."""
    message = refusal.message
    if refusal.wall != "unknown" or message.tried_bytes is None:
        return None
    if message.free_bytes is not None and not message.cut:
        return Finding(
            id="free_but_refused",
            verdict=Verdict.POSSIBLE,
            title="Enough was free right afterwards: others used it for a moment, or the host, WSL"
            " or a VM set a limit",
            fix="run it again and watch GPU memory with `vramlens top` and host memory with `free"
            " -h`",
        )
    if message.free_bytes is None and message.total_bytes is None and message.live_bytes is None:
        return Finding(
            id="no_figures",
            verdict=Verdict.POSSIBLE,
            title="The message has none of the numbers that show what filled the GPU",
            fix="pass the whole log, which may have them; or use less memory at this moment"
            " (smaller batch, checkpointing, no_grad in evaluation)",
        )
    if message.free_bytes is None and message.total_bytes is not None:
        return Finding(
            id="free_not_printed",
            verdict=Verdict.POSSIBLE,
            title="The message does not say how much was free",
            fix=f"look at {_tool(message)}: what is free, and what uses the rest",
        )
    return None


def _outside_pytorch(message: OomMessage, owners: ProcessShares) -> Finding | None:
    outside = outside_pytorch(message, owners)
    if not outside:
        return None
    rounding = message.slack("process_bytes", "reserved_bytes")
    parts = "context, libraries, NCCL"
    fix = (
        "free memory outside PyTorch's cache: fewer process groups, streams or "
        "libraries; empty_cache() frees none of it"
    )
    if message.kind == "mps":
        parts = "other Metal allocations"
        fix = "Metal uses it, and torch.mps.empty_cache() cannot free it: use less memory"
    title = f"{about(outside, rounding)} of this process is outside PyTorch ({parts})"
    verdict = Verdict.PROVEN if owners.how == "named" and outside > rounding else Verdict.LIKELY
    worth_a_fix = fix if outside > GIB else None
    return Finding("outside_pytorch", verdict, title, outside, fix=worth_a_fix)


def _stray_contexts(owners: ProcessShares) -> Finding | None:
    sizes = [size for _, size in owners.others if _CONTEXT_LOW <= size <= _CONTEXT_HIGH]
    if len(sizes) < 2:
        return None
    total = sum(sizes)
    return Finding(
        id="stray_context",
        verdict=Verdict.POSSIBLE,
        title=f"{len(sizes)} processes have only a CUDA context here, {format_size(total)} in"
        " total",
        bytes=total,
        fix="if they are ranks of this job: torch.cuda.set_device(local_rank) before any other"
        " CUDA call",
    )


def _unnamed_memory(refusal: Refusal, ledger: tuple[LedgerRow, ...]) -> Finding | None:
    message = refusal.message
    if message.free_bytes is None or message.live_bytes is None:
        return None
    if refusal.owners.own_bytes is not None or refusal.wall == "process_limit":
        return None
    unnamed = sum(row.bytes for row in ledger if row.kind == "unknown")
    if unnamed <= 2 * GIB:
        return None
    return Finding(
        id="unnamed_memory",
        verdict=Verdict.LIKELY,
        title=f"{format_size(unnamed)} is used by something that the message does not name",
        bytes=unnamed,
        fix=f"look at {_tool(message)}: other processes, or this one outside PyTorch",
    )


def _driver_calls(message: OomMessage) -> Finding | None:
    if "driver error" not in message.text:
        return None
    return Finding(
        id="driver_calls",
        verdict=Verdict.POSSIBLE,
        title=(
            "With expandable_segments, PyTorch uses driver calls that can fail even if memory is"
            " free"
        ),
        fix="try without expandable_segments (WSL and Jetson sometimes refuse it)",
    )


def _empty_cache(message: OomMessage) -> Finding | None:
    if message.live_bytes is None or message.reserved_bytes is None:
        return None
    if message.kind in ("mps", "npu"):
        return None
    call = f"{_PREFIX.get(message.kind, 'torch.cuda')}.empty_cache()"
    title = f"{call} will not help: before it failed, PyTorch released every empty segment"
    return Finding("empty_cache", Verdict.LIKELY, title, 0)


def _tool(message: OomMessage) -> str:
    return _TOOLS.get(message.kind, "nvidia-smi")
