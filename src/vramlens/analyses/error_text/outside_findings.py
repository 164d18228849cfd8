"""The findings about memory that was not allocated through PyTorch's cache."""

from __future__ import annotations

from vramlens.analyses.error_text.libraries import (
    LIBRARIES,
    OUTSIDE_FIXES,
    ROOM,
    VLLM_START,
    VLLM_START_FIX,
)
from vramlens.analyses.error_text.no_memory import COMFYUI_FIX, NOT_MEMORY, is_brief
from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.read.oom.oom_text import OomMessage


def outside_findings(message: OomMessage, wall: str) -> tuple[Finding, ...]:
    """How to make room for what does not allocate through PyTorch's cache."""
    kind = message.kind
    if wall == "host" or kind in NOT_MEMORY:
        return ()
    if is_brief(message):
        return (Finding("no_figures", Verdict.LIKELY, *COMFYUI_FIX),)
    if kind in OUTSIDE_FIXES:
        slug, title, fix = (
            VLLM_START_FIX if VLLM_START.search(message.text) else OUTSIDE_FIXES[kind]
        )
        return (Finding(slug, _verdict(message), title, message.tried_bytes, fix=fix),)
    if kind in LIBRARIES:
        return (_library_finding(message),)
    if message.tried_bytes is None and "more than 1EB" not in message.text:
        title = (
            "This is only the beginning of the error; the size, the limit and the free memory "
            "are in the rest"
        )
        fix = "pass the whole error message, or record the failure: vramlens run -o oom.vram SCRIPT"
        return (Finding("no_figures", Verdict.POSSIBLE, title, fix=fix),)
    return ()


def _library_finding(message: OomMessage) -> Finding:
    name, fix = LIBRARIES[message.kind], ROOM
    title = (
        f"{name} allocates its handle and workspace from the driver, and PyTorch's cache "
        "left no memory there"
    )
    if "NOT_INITIALIZED" in message.text:
        title = (
            f"{name} could not start: often there is no memory for its handle, otherwise "
            "the context or driver is damaged"
        )
        fix += (
            "; if nvidia-smi shows free memory, look for an earlier CUDA error with "
            "CUDA_LAUNCH_BLOCKING=1"
        )
    return Finding("library_memory", _verdict(message), title, message.tried_bytes, fix=fix)


def _verdict(message: OomMessage) -> Verdict:
    return Verdict.POSSIBLE if message.verdict == Verdict.POSSIBLE else Verdict.LIKELY
