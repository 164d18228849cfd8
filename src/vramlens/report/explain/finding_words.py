"""The evidence in words: findings, growth, steps, where the device's memory is, what is not known.

Everything is one line of plain words: what came with the input has its control characters made
visible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramlens.analyses.error_text.message_sums import ROUNDING
from vramlens.analyses.findings.table import ROWS
from vramlens.ground.verdict import Verdict
from vramlens.leak.claim import growth_words
from vramlens.report.document import Claim, Figure, size_figure
from vramlens.report.explain.answer_words import has_failed, is_cut_short
from vramlens.report.wording import (
    capitalized,
    place_name,
    plain,
    sentence,
    steps_found_by,
    visible,
    visible_sentences,
    with_stake,
    with_verdict,
)
from vramlens.units import agreeing, counted, format_size

if TYPE_CHECKING:
    from vramlens.analyses.explanation import Explanation, OomVerdict
    from vramlens.analyses.finding import Finding
    from vramlens.analyses.leaks.recorded_leak import RecordedLeak
    from vramlens.ground.vocabulary import LedgerRow
    from vramlens.leak.leak import Leak

_KINDS = {
    "pytorch_allocated": "tensors in PyTorch",
    "pytorch_private_pools": "free in PyTorch's private pools (CUDA graphs)",
    "pytorch_cached": "cached by PyTorch but not in use",
    "this_process": "this process",
    "this_process_other": "this process, outside PyTorch (CUDA context, libraries, NCCL)",
    "outside_pytorch": "outside PyTorch (CUDA contexts, libraries, other processes)",
    "other_processes": "other processes",
    "nccl": "NCCL buffers",
    "driver_reserved": "reserved by the driver and its firmware",
    "free": "free",
    "unknown": "used by something that this input does not show",
}

_UNSURE = {Verdict.POSSIBLE: "Maybe", Verdict.LIKELY: "Likely"}
"""What stands before an edit whose effect is not proven, where its title has no room."""


def ledger_figures(explanation: Explanation) -> tuple[Figure, ...]:
    """Where the device's memory is; an error's text that does not say what is free leaves that
    open, too.
    """
    rows, oom = explanation.ledger, explanation.oom
    is_free_open = explanation.peak is None and oom is not None and oom.free_bytes is None
    return tuple(
        size_figure(
            row.bytes,
            ("free, or " if is_free_open and row.kind == "unknown" else "") + _part(row, rows),
        )
        for row in rows
        if row.bytes
    )


def ledger_when(explanation: Explanation) -> str:
    """The moment at which the recording itself measured that; "" elsewhere."""
    if "ledger.json" not in explanation.recording.members:
        return ""
    return " when the request failed" if explanation.oom is not None else " at the end"


def _part(row: LedgerRow, rows: tuple[LedgerRow, ...]) -> str:
    words = row.note if row.note == ROUNDING else _KINDS.get(row.kind, plain(row.kind))
    if row.kind == "this_process_other" and any(other.kind == "nccl" for other in rows):
        words = words.replace("context, libraries, NCCL", "context and libraries")
    return words + (" (inferred)" if row.confidence == "inferred" else "")


def sorted_findings(
    findings: tuple[Finding, ...],
) -> tuple[tuple[Claim, ...], tuple[str, ...], tuple[str, ...]]:
    """What to do, what would not help, and what else is so."""
    claims, refuted, notes = [], [], []
    for finding in findings:
        if finding.fix is not None:
            claims.append(_claim(finding))
        elif finding.bytes == 0 or finding.verdict == Verdict.NOT_A_PROBLEM:
            refuted.append(visible(sentence(finding.title)))
        else:
            sure = "" if finding.verdict == Verdict.PROVEN else f" ({finding.verdict})"
            notes.append(visible(sentence(f"{finding.title}{sure}")))
    return tuple(claims), tuple(refuted), tuple(notes)


def _claim(finding: Finding) -> Claim:
    title = finding.title.strip().rstrip(".")
    if finding.place is not None and finding.place.file not in title:
        title = f"{title} ({place_name(finding.place)})"
    title, fix = visible(sentence(title)), visible((finding.fix or "").strip())
    brief = f"{_UNSURE[finding.verdict]}: {fix}" if finding.verdict in _UNSURE else capitalized(fix)
    return Claim(
        title=with_verdict(finding.verdict, title),
        evidence=visible_sentences(filter(str.strip, finding.evidence)),
        fix=fix,
        brief=with_stake(brief, finding.bytes),
    )


def _not_yet_claimed(explanation: Explanation) -> list[RecordedLeak]:
    """Leaks of which no finding speaks."""
    return [
        leak
        for leak in explanation.leaks
        if not leak.is_small
        and not any(_is_about(finding, leak) for finding in explanation.findings)
    ]


def _is_about(finding: Finding, leak: RecordedLeak) -> bool:
    """Whether a finding speaks of a leak: of its line, or of its memory among others', or says what keeps that."""
    row = ROWS.get(finding.id)
    if finding.id == "leak" and finding.place == leak.place:
        return True
    says_why = row is not None and row.grows and finding.fix is not None
    is_sure = finding.id == "leak" or finding.verdict != Verdict.POSSIBLE
    has_memory = finding.extent is not None and leak.is_mostly_in(finding.extent.rows)
    return says_why and is_sure and has_memory


def growth_sentences(explanation: Explanation) -> tuple[str, ...]:
    """The memory that every step leaves behind, where no finding speaks of it."""
    return tuple(visible(_growth(leak)) for leak in _not_yet_claimed(explanation))


def _growth(leak: Leak) -> str:
    where = f", at {place_name(leak.place)}" if leak.place is not None else ""
    fix = f" {sentence(leak.advice)}" if leak.advice else ""
    return f"{growth_words(leak)}{where} ({leak.verdict}).{fix}"


def steps_sentence(explanation: Explanation) -> str:
    """The steps in one sentence; "" where unknown."""
    steps = explanation.steps
    if not steps.count:
        return ""
    found_by = f", {steps_found_by(steps.source)}" if steps.source else ""
    counted_steps = f"{counted(steps.count, 'step')}{found_by}"
    from_zero = " Step 0 is the first recorded." if steps.count > 1 else ""
    peaks = steps.peak_bytes
    if not peaks:
        return f"{counted_steps}."
    if max(peaks) - min(peaks) <= max(peaks) // 100:
        return (
            f"{counted_steps}. {agreeing(len(peaks), 'Its', 'Each')} peak:"
            f" {format_size(max(peaks))} requested.{from_zero}"
        )
    shown = [
        format_size(size) for size in (peaks if len(peaks) <= 6 else (*peaks[:3], *peaks[-3:]))
    ]
    if len(peaks) > 6:
        shown.insert(3, "…")
    return f"{counted_steps}. Peaks (requested): {', '.join(shown)}.{_largest_step(explanation)}{from_zero}"


def _largest_step(explanation: Explanation) -> str:
    """The step with the highest peak, where that is among those left out, and that it fitted where a
    later one failed; "" elsewhere.
    """
    peaks = explanation.steps.peak_bytes
    number = max(range(len(peaks)), key=lambda step: peaks[step])
    failed = explanation.failure is not None
    is_shown = len(peaks) <= 6 or number < 3 or number >= len(peaks) - 3
    if is_shown and (not failed or number == len(peaks) - 1):
        return ""
    fitted = ", which fit" if failed else ""
    return f" The highest: {format_size(peaks[number])} in step {number}{fitted}."


def unknown_sentences(explanation: Explanation) -> tuple[str, ...]:
    """What is missing, or cannot be told."""
    facts, oom = explanation.recording, explanation.oom
    # That an error's text is not a recording need not be said; what it leaves open is among the
    # unknowns.
    sentences = list(facts.missing) if explanation.peak is not None or oom is None else []
    sentences = [missing for missing in sentences if not is_cut_short(missing)]  # said first
    if not facts.complete and not sentences and explanation.peak is not None:
        sentences.append("The recording is incomplete")
    if oom is not None and has_failed(explanation):
        sentences.extend(oom.unknowns)
        is_prediction = facts.meta.is_prediction  # it knows the whole
        if oom.need is not None and oom.need.basis is None and not is_prediction:
            sentences.append(
                f"What this step needs to finish: {_least_need(oom)}. No earlier step is similar"
            )
    return visible_sentences(sentences)


def _least_need(oom: OomVerdict) -> str:
    """What a step needs of which no earlier one tells more: no less than what was reserved, and the
    request that failed.
    """
    least = 0 if oom.need is None else oom.need.low_bytes
    if oom.reserved_bytes is None or oom.tried_bytes is None:
        return f"at least {format_size(least)}"
    with_request = oom.reserved_bytes + oom.tried_bytes
    if with_request <= least:
        return f"at least {format_size(least)}"
    reserved = format_size(oom.reserved_bytes)
    return f"at least {format_size(with_request)} ({reserved} reserved so far, and this request)"
