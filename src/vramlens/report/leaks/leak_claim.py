"""One leak in words: what leaks how fast, who keeps it, what to do, and what that rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramlens.ground.verdict import Verdict
from vramlens.report.document import Tone
from vramlens.report.wording import place_name, visible
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from vramlens.analyses.finding import Finding
    from vramlens.analyses.leaks.leak import Leak
    from vramlens.analyses.leaks.recorded_leaks import DeviceLeaks, LeakReport
    from vramlens.analyses.leaks.recorded_owners import Owner

_MOST_CHAIN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakClaim:
    """One leak: what leaks how fast, who keeps it, what to do, and what that rests on."""

    headline: str
    keeper: str
    fix: str
    notes: tuple[str, ...]
    tone: Tone = Tone.OPEN


def claim_of(report: LeakReport, leak: Leak) -> LeakClaim:
    """A leak that events show."""
    device = next(
        (device for device in report.devices if device.device == leak.device), report.devices[0]
    )
    growth = _growth_words(leak, has_several=len(report.devices) > 1)
    headline = f"GROWTH, maybe a leak: {growth}{_needed_words(leak)}"
    if leak.sure:
        headline = f"LEAK {leak.verdict}: {growth}"
    if leak is device.leaks[0]:
        headline += _end(device, leak)
    return LeakClaim(
        headline=headline,
        keeper=_keeper(leak),
        fix=visible(leak.fix or ""),
        notes=tuple(map(visible, _notes(leak))),
        tone=Tone.BAD if leak.sure else Tone.OPEN,
    )


def context_claim(leak: Leak) -> LeakClaim:
    """A context: memory in vain that does not grow."""
    return LeakClaim(
        headline=f"KEPT FOR NOTHING (not growing): {format_size(leak.bytes)} on device "
        f"{leak.device},"
        " which PyTorch does not use",
        keeper="No tensor uses it: it is a CUDA context (memory of the driver and the "
        "libraries for this"
        " process).",
        fix=visible(leak.fix or ""),
        notes=(*map(visible, leak.evidence), f"not certain: {leak.reason}"),
    )


def sampled_claim(finding: Finding) -> LeakClaim:
    """Growth that only samples show."""
    is_likely = finding.verdict in (Verdict.PROVEN, Verdict.LIKELY)
    label = "LEAK likely" if is_likely else "GROWTH, maybe a leak"
    keeper = "The samples do not show which line."
    if finding.place is not None:
        keeper = f"Allocated at {place_name(finding.place)}."
    title = finding.title[:1].lower() + finding.title[1:]
    return LeakClaim(
        headline=f"{label}: {visible(title)}",
        keeper=keeper,
        fix=visible(finding.fix or ""),
        notes=tuple(map(visible, finding.evidence)),
        tone=Tone.BAD if is_likely else Tone.OPEN,
    )


def _growth_words(leak: Leak, *, has_several: bool) -> str:
    """How much grows how fast, and where."""
    where = ""
    if leak.device < 0:
        where = " of pinned host memory"
    elif has_several:
        where = f" on device {leak.device}"
    total = format_size(leak.bytes)
    if leak.steps:
        rate = f"{format_size(leak.bytes_per_step)} per step"
        words = f"{rate}{where}, {total} so far in {counted(leak.steps, 'step')}"
    else:
        words = f"{total}{where} over the recording"
    return f"{words}, outside PyTorch" if leak.kind == "external" else words


def _needed_words(leak: Leak) -> str:
    if not leak.needs_steps:
        return ""
    return f". {counted(leak.needs_steps, 'more step')} would tell, or --leaks"


def _notes(leak: Leak) -> list[str]:
    """What the verdict rests on; the last says why no more is certain."""
    notes = list(leak.evidence)
    if leak.low != leak.high:
        bounds = f"{format_size(leak.low)} to {format_size(leak.high)} per step"
        notes.insert(0, f"{bounds}, if at least half of the steps are considered")
    if leak.reason:
        notes.append(f"{'not proven' if leak.sure else 'not certain'}: {leak.reason}")
    return notes


def _end(device: DeviceLeaks, leak: Leak) -> str:
    """When memory ran out, or will."""
    from vramlens.analyses.leaks.recorded_leaks import when

    if device.failed_step is not None:
        return f"; memory ran out in step {device.failed_step}"
    return f"; {when(device.prediction)}" if device.prediction is not None and leak.sure else ""


def _keeper(leak: Leak) -> str:
    """Who keeps it, as far as that is known."""
    line = place_name(leak.place) if leak.place is not None else None
    if leak.owner is not None:
        return _owner_words(leak.owner, line)
    if leak.kind == "external":
        return (
            "No tensor uses it. A library (NCCL, cuBLAS), a CUDA context or another process does."
        )
    if leak.kind == "stream" and leak.allocations_per_step:
        return (
            f"Allocated at {line or 'an unknown line'} and freed, but another stream that is "
            "steps behind"
            " still uses it."
        )
    if leak.kind in ("stream", "pool"):
        return (
            f"Allocated at {line or 'an unknown line'}. Nothing keeps it, but no other stream or"
            " pool can use it."
        )
    if line is None:
        return (
            "The recording has no Python frames for it, so it shows neither the line nor what"
            " keeps it."
        )
    return (
        f"Allocated at {line}. The recording does not show what keeps it; run with --leaks to "
        "find out."
    )


def _owner_words(owner: Owner, line: str | None) -> str:
    at = f" ({visible(owner.file)}:{owner.line or '?'})" if owner.file else ""
    chain = " > ".join(map(visible, owner.chain[-_MOST_CHAIN:]))
    request = f" Allocated at {line}." if line else ""
    through = f" Reference chain: {chain}." if chain else ""
    return f"{visible(owner.name)}, a {visible(owner.kind or 'holder')}{at}, keeps it.{request}{through}"
