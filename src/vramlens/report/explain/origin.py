"""Origin: in a few words, which run a recording comes from, why it was written, and what of it
is overwritten; and its command.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from vramlens.analyses.undecided_run import decisions_sentence
from vramlens.report.wording import visible
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from vramlens.analyses.explanation import Overwritten, Peak, RecordingFacts
    from vramlens.trace.meta import Meta

_LONGEST_COMMAND = 1000
_TRIGGERS = {
    "oom": "when memory ran out",
    "error": "when the program failed",
    "sigterm": "when SIGTERM ended the program",
    "sighup": "when SIGHUP ended the program",
    "sigabrt": "when the program aborted (SIGABRT)",
    "signal": "on a signal",
    "exit": "when the program ended",
    "steps": "after the steps to record (--steps)",
    "every": "at a regular interval",
    "api": "at the program's request",
}


def origin_of(facts: RecordingFacts) -> tuple[str, ...]:
    """One sentence each; none for a bare snapshot, which says nothing of its making."""
    meta = facts.meta
    rings = [_ring(ring, meta.max_events, len(facts.devices)) for ring in facts.overwritten]
    decisions = "" if meta.decisions is None else decisions_sentence(meta.decisions)
    sentences = [_made_on(meta), decisions, *rings]
    return tuple(visible(text.rstrip(".") + ".") for text in sentences if text)


def command_of(facts: RecordingFacts) -> str:
    """The command that made a recording, to paste; "" where it is not known. Only an endless one is
    cut.
    """
    command = shlex.join(facts.meta.command)
    is_endless = len(command) > _LONGEST_COMMAND
    return visible(f"{command[:_LONGEST_COMMAND]}…" if is_endless else command)


def _made_on(meta: Meta) -> str:
    """The machine, the PyTorch, the rank and the moment; "" where none of the first three is
    known.
    """
    parts = [
        (meta.device_name or "").removesuffix(" (predicted)"),
        f"torch {meta.torch}" if meta.torch else "",
        _rank(meta.rank, meta.world_size),
    ]
    if not any(parts):
        return ""
    verb = "Predicted for" if meta.is_prediction else "Recorded on"
    written = _TRIGGERS.get(meta.trigger or "", "")
    at_step = f", after step {meta.step:,}" if meta.step else ""
    moment = f"; written {written}{at_step}" if written else ""
    return f"{verb} {', '.join(filter(None, parts))}{moment}"


def higher_before(facts: RecordingFacts, peak: Peak) -> str:
    """One sentence where the allocator itself counted a higher peak than the events that are
    left; "" elsewhere.
    """
    counted_peak = facts.meta.device(peak.device).stats.get("allocated_bytes.all.peak", 0)
    if counted_peak <= peak.allocated_bytes:
        return ""
    return (
        "Memory use was higher at a time whose events were overwritten: "
        f"{format_size(counted_peak)} allocated at most "
        f"(torch.cuda.memory_stats), {format_size(peak.allocated_bytes)} in this recording"
    )


def _rank(rank: int | None, size: int | None) -> str:
    if rank is None or size == 1:
        return ""
    return f"rank {rank}" + (f" of {size}" if size else "")


def _ring(ring: Overwritten, max_events: int | None, devices: int) -> str:
    where = f" of device {ring.device}" if devices > 1 else ""
    size = f" of {counted(max_events, 'event')}" if max_events else ""
    lost = (
        f"the first {duration(ring.lost_us)}"
        if ring.lost_us
        else "everything before its first event"
    )
    return (
        f"The ring{size}{where} was full: {lost} is overwritten, and only memory that was still "
        "in use is known"
    )


def duration(time_us: int) -> str:
    """A span of time in its two largest units: ``3 h 12 min``, ``45 s``."""
    seconds = time_us // 1_000_000
    units = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    parts: list[str] = []
    for size, unit in units:
        if seconds >= size or (unit == "s" and not parts):
            parts.append(f"{seconds // size} {unit}")
            seconds %= size
        elif parts:
            break
    return " ".join(parts[:2])
