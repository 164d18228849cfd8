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
from vramlens.analyses.error_text.figure_findings import figure_findings
from vramlens.analyses.error_text.host_memory import KILLED, host_findings
from vramlens.analyses.error_text.libraries import FOREIGN, outside_findings
from vramlens.analyses.error_text.message_sums import (
    ProcessShares,
    expandable_verdict,
    least_request,
    ledger_of,
    likely_holes,
    overflow,
    owners_of,
    room_of,
    shortage,
    wall_of,
)
from vramlens.analyses.error_text.no_memory import NOT_MEMORY, not_memory_findings
from vramlens.analyses.error_text.refusal import Refusal
from vramlens.analyses.error_text.text_headline import headline_of
from vramlens.analyses.error_text.wall_findings import wall_findings
from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.ground.vocabulary import LedgerRow
from vramlens.read.oom.oom_text import OomMessage
from vramlens.trace.engine_log import EngineLog
from vramlens.units import format_size

_SETTINGS = {"hip": "PYTORCH_HIP_ALLOC_CONF", "npu": "PYTORCH_NPU_ALLOC_CONF"}


@dataclass(frozen=True, slots=True)
class TextVerdict:
    """What one message tells.

    Attributes:
        wall: what refused the request, a ``Wall``.
        cause: None: sums cannot tell fragmentation, leak, spike and capacity apart.
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
    likely_holes_bytes: int | None
    expandable_segments: str | None
    short_by_bytes: int | None
    short_slack_bytes: int
    headline: str
    ledger: tuple[LedgerRow, ...]
    findings: tuple[Finding, ...]
    unknowns: tuple[str, ...]


def explain_message(message: OomMessage, *, log: EngineLog | None = None) -> TextVerdict:
    """What a message proves.

    Args:
        log: what serving engines and NCCL printed of their memory in the same log.
    """
    log = log or EngineLog()
    owners = owners_of(message)
    wall = wall_of(message, owners)
    short, slack = shortage(message, wall)
    refusal = Refusal(message, wall, short_bytes=short, slack_bytes=slack, owners=owners)
    hint = expandable_verdict(message)
    ledger, ledger_note = ledger_of(message, owners)
    ledger = with_nccl(ledger, message, log) or engine_ledger(log.budget)
    findings = (
        *not_memory_findings(message),
        *host_findings(message, wall),
        *instead_of_general_advice(
            engine_findings(message, log),
            (
                *wall_findings(refusal),
                *_expandable_findings(message, hint),
                *outside_findings(message, wall),
            ),
        ),
        *figure_findings(refusal, ledger),
    )
    return TextVerdict(
        wall=wall,
        cause=None,
        likely_holes_bytes=likely_holes(message, wall),
        expandable_segments=hint,
        short_by_bytes=None if message.cut else short,
        short_slack_bytes=0 if message.cut else slack,
        headline=headline_of(refusal),
        ledger=ledger,
        findings=findings,
        unknowns=(*ledger_note, *unknowns_of(message, wall, owners, hint)),
    )


def _expandable_findings(message: OomMessage, hint: str | None) -> tuple[Finding, ...]:
    """What the message's own hint is worth."""
    if hint is None or message.live_bytes is None:
        return ()
    room, _ = room_of(message)
    evidence = [f"{format_size(message.live_bytes)} is in use"]
    if room is not None:
        evidence.append(f"PyTorch could use {format_size(room)} without any fragmentation")
    if hint == "refuted":
        return (_refuted_hint(message, evidence),)
    return (_undecided_hint(message, evidence),)


def _refuted_hint(message: OomMessage, evidence: list[str]) -> Finding:
    too_much = overflow(message, least_request(message))
    title = (
        "expandable_segments will not help: even without fragmentation it would be at least "
        f"{format_size(too_much)} too much"
    )
    proven = overflow(message, 1) > 0  # whatever the size of segments is set to
    if not proven:
        evidence = [*evidence, "this assumes a request with segments of the default size"]
    verdict = Verdict.PROVEN if proven else Verdict.LIKELY
    return Finding("expandable_segments", verdict, title, 0, evidence=tuple(evidence))


def _undecided_hint(message: OomMessage, evidence: list[str]) -> Finding:
    holes = max(0, (message.reserved_bytes or 0) - (message.allocated_bytes or 0))
    printed_setting = re.search(r"PYTORCH_(?:[A-Z]{2,5}_)?ALLOC_CONF(?==)", message.text)
    setting = _SETTINGS.get(message.kind, "PYTORCH_CUDA_ALLOC_CONF")
    if printed_setting:
        setting = printed_setting[0]
    where = "the message does not say how much is in free blocks"
    if message.reserved_bytes is not None:
        where = f"{format_size(holes)} is in free blocks of unknown size"
    return Finding(
        "expandable_segments",
        Verdict.POSSIBLE,
        f"expandable_segments may help: {where}",
        holes or None,
        evidence=tuple(evidence),
        fix=f"try {setting}=expandable_segments:True",
    )


def unknowns_of(
    message: OomMessage, wall: str, owners: ProcessShares, hint: str | None
) -> tuple[str, ...]:
    """What only a recording or a look at the machine can tell."""
    if wall == "host" or message.kind in NOT_MEMORY:
        return () if message.frame is not None else (_unknown_line(message.text),)
    if message.kind in FOREIGN:
        return ("The message does not say what else was on the GPU at that moment.",)
    others_unsaid = owners.own_bytes is None and message.total_bytes is not None
    sentences = (
        (message.cut, "The end of the message is missing."),
        (
            True,
            "Only a recording shows why this much was in use (growth, one large step, or simply "
            "its size).",
        ),
        (
            message.live_bytes is None,
            "The message does not say how much PyTorch had reserved and how much of that was free.",
        ),
        (
            hint == "undecided",
            "The message does not print the sizes of the free blocks or whether "
            "expandable_segments was already on.",
        ),
        (
            owners.how == "unclear",
            "One of the listed processes may be this one (a container hides that), so the "
            "share of the others is unknown.",
        ),
        (
            owners.how == "inferred",
            "The process that uses as much as PyTorch reserved is assumed to be this one (a "
            "container hides that).",
        ),
        (
            message.hidden_processes,
            f"The driver did not report the size of {message.hidden_processes} process(es) "
            "(WSL, Windows, MIG).",
        ),
        (
            others_unsaid and owners.how != "unclear" and not message.hidden_processes,
            "The message does not say how much this process uses outside PyTorch or how much "
            "others use.",
        ),
    )
    return tuple(sentence for applies, sentence in sentences if applies)


def _unknown_line(text: str) -> str:
    """Why the line of the program is unknown."""
    if re.search(KILLED, text):
        return "A killed process prints no traceback, so the line of the program is unknown."
    return "The line of the program is in the traceback, not in this message."
