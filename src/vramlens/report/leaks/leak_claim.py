"""One leak of a recording as a paragraph of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramlens.leak.claim import claim_of, notes_of
from vramlens.report.document import Tone
from vramlens.report.wording import place_name, visible
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from vramlens.analyses.finding import Finding
    from vramlens.analyses.leaks.recorded_leak import RecordedLeak
    from vramlens.analyses.leaks.recorded_leaks import DeviceLeaks, RecordedLeakReport

_UNSEEN = "the recording does not show what keeps it; run with --leaks to find out"
_SEEN = "it was in {} when the recording was written; run with --leaks to find the statement that keeps it"
_NO_FRAMES = (
    "the recording has no Python frames for it, so it shows neither the line nor what keeps it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakParagraph:
    """One leak: what leaks how fast, who keeps it, what to do, and what that rests on."""

    headline: str
    keeper: str
    fix: str
    notes: tuple[str, ...]
    tone: Tone = Tone.OPEN


def paragraph_of(report: RecordedLeakReport, leak: RecordedLeak) -> LeakParagraph:
    """A leak that events show."""
    device = next(
        (device for device in report.devices if device.device == leak.device), report.devices[0]
    )
    claim = claim_of(
        leak,
        unseen=_unseen_words(leak),
        where=_device_words(leak, has_several=len(report.devices) > 1),
        end=_needed_words(device, leak) + (_end(device, leak) if leak is device.leaks[0] else ""),
    )
    facts = [f"{fact[:1].upper()}{fact[1:]}" for fact in claim.facts]
    sentences = [f"{text}." for text in (claim.owner, *facts) if text]
    return LeakParagraph(
        headline=visible(claim.headline),
        keeper=" ".join(map(visible, sentences)),
        fix=visible(claim.fix),
        notes=tuple(map(visible, claim.notes)),
        tone=Tone.BAD if leak.sure else Tone.OPEN,
    )


def _unseen_words(leak: RecordedLeak) -> str:
    """What stands in the place of an owner."""
    if leak.place is None:
        return _NO_FRAMES
    return _SEEN.format(leak.kept_in) if leak.kept_in else _UNSEEN


def context_claim(leak: RecordedLeak) -> LeakParagraph:
    """A context: memory in vain that does not grow."""
    return LeakParagraph(
        headline=f"KEPT FOR NOTHING (not growing): {format_size(leak.bytes)} on device "
        f"{leak.device}, which PyTorch does not use",
        keeper="No tensor uses it: it is a CUDA context (memory of the driver and the libraries "
        "for this process).",
        fix=visible(leak.advice or ""),
        notes=tuple(map(visible, notes_of(leak))),
    )


def sampled_claim(finding: Finding) -> LeakParagraph:
    """Growth that only samples show."""
    is_likely = finding.verdict.is_sure
    label = "LEAK likely" if is_likely else "GROWTH, maybe a leak"
    keeper = "The samples do not show which line."
    if finding.place is not None:
        keeper = f"Allocated at {place_name(finding.place)}."
    title = finding.title[:1].lower() + finding.title[1:]
    return LeakParagraph(
        headline=f"{label}: {visible(title)}",
        keeper=keeper,
        fix=visible(finding.fix or ""),
        notes=tuple(map(visible, finding.evidence)),
        tone=Tone.BAD if is_likely else Tone.OPEN,
    )


def _device_words(leak: RecordedLeak, *, has_several: bool) -> str:
    """Whose memory it is, where that is not the one device's."""
    if leak.device < 0:
        return " of pinned host memory"
    return f" on device {leak.device}" if has_several else ""


def _needed_words(device: DeviceLeaks, leak: RecordedLeak) -> str:
    """What would make it certain: no more steps where the run had no memory for them."""
    if not leak.needs_steps or device.failed:
        return ""
    return f". {counted(leak.needs_steps, 'more step')} would make it certain, or --leaks"


def _end(device: DeviceLeaks, leak: RecordedLeak) -> str:
    """When memory ran out, or will."""
    from vramlens.analyses.leaks.rate import time_to_full_text

    if device.failed_step is not None:
        return f"; memory ran out in step {device.failed_step}"
    return (
        f"; {time_to_full_text(device.prediction)}"
        if device.prediction is not None and leak.sure
        else ""
    )
