"""One leak in words: what leaks how fast, who keeps it, what to do, and what that rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramlens.ground.verdict import Verdict
from vramlens.report.wording import place_name, visible
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from vramlens.analyses.finding import Finding
    from vramlens.analyses.leaks.leak import Leak
    from vramlens.analyses.leaks.leaks import DeviceLeaks, LeakReport
    from vramlens.analyses.leaks.recorded_owners import Owner

_MOST_CHAIN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakClaim:
    """One leak: what leaks how fast, who keeps it, what to do, and what that rests on."""

    headline: str
    keeper: str
    fix: str
    notes: tuple[str, ...]


def claim_of(report: LeakReport, leak: Leak) -> LeakClaim:
    """A leak that events show."""
    device = next(
        (device for device in report.devices if device.device == leak.device), report.devices[0]
    )
    growth = _growth_words(leak, has_several=len(report.devices) > 1)
    if leak.sure:
        headline = f"LEAK {leak.verdict}: {growth}"
    else:
        headline = f"GROWING, but no leak proven: {growth}{_needed_words(leak)}"
    if leak is device.leaks[0]:
        headline += _end(device, leak)
    return LeakClaim(
        headline=headline,
        keeper=_keeper(leak),
        fix=visible(leak.fix or ""),
        notes=tuple(map(visible, _notes(leak))),
    )


def context_claim(leak: Leak) -> LeakClaim:
    """A context: memory in vain that does not grow."""
    return LeakClaim(
        headline=f"IN VAIN, but not growing: {format_size(leak.bytes)} on device {leak.device},"
        " which PyTorch does not use",
        keeper="No tensor holds it: it is a context (the driver's and the libraries' memory of this"
        " process).",
        fix=visible(leak.fix or ""),
        notes=(*map(visible, leak.evidence), f"not sure: {leak.reason}"),
    )


def sampled_claim(finding: Finding) -> LeakClaim:
    """Growth that only samples show."""
    is_likely = finding.verdict in (Verdict.PROVEN, Verdict.LIKELY)
    label = "LEAK likely" if is_likely else "GROWING, but no leak proven"
    keeper = "The samples name no line of it."
    if finding.place is not None:
        keeper = f"{place_name(finding.place)} asks for it."
    title = finding.title[:1].lower() + finding.title[1:]
    return LeakClaim(
        headline=f"{label}: {visible(title)}",
        keeper=keeper,
        fix=visible(finding.fix or ""),
        notes=tuple(map(visible, finding.evidence)),
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
        rate = f"{format_size(leak.bytes_per_step)} a step"
        words = f"{rate}{where}, {counted(leak.steps, 'step')}, {total} so far"
    else:
        words = f"{total}{where} over the recording"
    return f"{words}, outside PyTorch" if leak.kind == "external" else words


def _needed_words(leak: Leak) -> str:
    if not leak.needs_steps:
        return ""
    return f"; {counted(leak.needs_steps, 'more step')} would tell, or --leaks"


def _notes(leak: Leak) -> list[str]:
    """What the verdict rests on; the last says why no more is certain."""
    notes = list(leak.evidence)
    if leak.low != leak.high:
        bounds = f"{format_size(leak.low)} to {format_size(leak.high)} a step"
        notes.insert(0, f"{bounds}, over half of the steps or more")
    if leak.reason:
        notes.append(f"{'not proven' if leak.sure else 'not sure'}: {leak.reason}")
    return notes


def _end(device: DeviceLeaks, leak: Leak) -> str:
    """When memory ran out, or will."""
    from vramlens.analyses.leaks.leaks import when

    if device.failed_step is not None:
        return f"; memory ran out in step {device.failed_step}"
    return f"; {when(device.prediction)}" if device.prediction is not None and leak.sure else ""


def _keeper(leak: Leak) -> str:
    """Who keeps it, as far as that is known."""
    line = place_name(leak.place) if leak.place is not None else None
    if leak.owner is not None:
        return _owner_words(leak.owner, line)
    if leak.kind == "external":
        return "No tensor holds it: a library (NCCL, cuBLAS), a context or another process does."
    if leak.kind == "stream" and leak.allocations_per_step:
        return (
            f"{line or 'Some line'} asked for it and gave it up; another stream, steps behind,"
            " still uses it."
        )
    if leak.kind in ("stream", "pool"):
        return (
            f"{line or 'Some line'} asked for it there; nothing keeps it, but no other stream or"
            " pool can use it."
        )
    if line is None:
        return (
            "No line is known: the recording has no Python frames for it. It cannot name what"
            " keeps it either."
        )
    return f"{line} asks for it; the recording cannot name what keeps it: run with --leaks."


def _owner_words(owner: Owner, line: str | None) -> str:
    at = f" ({visible(owner.file)}:{owner.line or '?'})" if owner.file else ""
    chain = " > ".join(map(visible, owner.chain[-_MOST_CHAIN:]))
    request = f" {line} asked for it." if line else ""
    through = f" Held by {chain}." if chain else ""
    return f"{visible(owner.name)}, a {visible(owner.kind or 'holder')}{at}, keeps it.{request}{through}"
