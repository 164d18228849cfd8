"""What replay adds to an explanation: proven counters, and what settings would have done for
this very run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vramlens.analyses.attribution.attribution import attribute
from vramlens.analyses.explanation import Moment
from vramlens.analyses.failure.need import ADVICE
from vramlens.analyses.failure.oom import settings_variable
from vramlens.analyses.finding import Finding
from vramlens.errors import VramlensError
from vramlens.ground.verdict import Confidence, Verdict
from vramlens.replay.answer import assignment
from vramlens.replay.need.verdict_findings import with_judgement
from vramlens.replay.proof import Proven, prove
from vramlens.replay.tune import WORTH_TRYING, distinct_settings, simple_first
from vramlens.replay.what_if import WhatIf, ask, question
from vramlens.units import MIB, format_size

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution
    from vramlens.analyses.explanation import Explanation
    from vramlens.trace import Trace

EVENTS_TO_REPLAY = 20_000_000
"""In all, for one explanation: about a second of one core."""

_ORDERS = 12
"""How often a setting is replayed at most: in several orders of addresses."""
_LEAST_SAVED, _LEAST_SHARE = 64 * MIB, 0.05


def with_replay(
    explanation: Explanation,
    trace: Trace,
    events_to_replay: int = EVENTS_TO_REPLAY,
    *,
    view: Attribution | None = None,
) -> Explanation:
    """The explanation with what the replay of its device proves; as it is where nothing can be
    replayed.

    Args:
        events_to_replay: how many in all: bounds the time. Less is told of a recording that is too
            long for it.
        view: the device's attribution, where it is at hand.
    """
    if explanation.peak is None:
        return explanation
    device = trace.devices[explanation.peak.device]
    runs = events_to_replay // max(1, len(device.events))
    if not runs:
        return explanation
    limit = explanation.oom.limit_bytes if explanation.oom is not None else None
    once = runs < 2 * _ORDERS
    try:
        proven = prove(trace, device, limit, once=once)
        if not proven.recorded.exact and limit is not None:
            # The limit was set later, or is rounded in a text.
            proven = prove(trace, device, once=once)
    except VramlensError:
        return explanation
    if not proven.recorded.exact:
        return explanation
    explanation = _with_counters(explanation, proven)
    if explanation.oom is None or explanation.oom.survived:
        return _with_savings(explanation, trace, proven, runs)
    if runs < 2 * len(ADVICE):
        return explanation
    return with_judgement(explanation, view or attribute(trace, device), proven, runs)


def _with_counters(explanation: Explanation, proven: Proven) -> Explanation:
    """The peaks as the allocator itself counts them, and the moment's figures, where nothing
    came before.
    """
    peak, recorded = explanation.peak, proven.recorded
    assert peak is not None
    if recorded.warm or not peak.exact:
        return explanation
    names = ("allocated_bytes", "active_bytes")
    exact = replace(
        peak,
        allocated_bytes=recorded.peak_allocated_bytes,
        active_bytes=recorded.peak_active_bytes,
        exact=(*peak.exact, *(name for name in names if name not in peak.exact)),
    )
    return replace(explanation, peak=exact, moment=_moment(explanation, proven))


def _moment(explanation: Explanation, proven: Proven) -> Moment | None:
    heap, device = explanation.heap, proven.device
    if heap is None or heap.device != device.device:
        return None
    alive = device.allocations.alive_after(heap.event)
    is_used = device.allocations.free_requested[alive] > heap.event
    taken = proven.taken_bytes[alive]
    segments = device.segments.size_bytes[device.segments.alive_after(heap.event)]
    return Moment(int(taken[is_used].sum()), int(taken.sum()), int(segments.sum()))


def _what_to_do_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: finding.fix is None))


def _asked(
    trace: Trace, proven: Proven, confs: Sequence[str], *, quick: bool = False
) -> list[WhatIf]:
    """The answers for those settings that this version knows and that differ from the recorded
    ones.
    """
    settings = distinct_settings(proven, confs, newest=trace.torch_version is not None)
    return ask(proven, [question(proven, setting.conf) for setting in settings], quick=quick)


# After a run that lived


def _with_savings(explanation: Explanation, trace: Trace, proven: Proven, runs: int) -> Explanation:
    """The explanation with what the best setting would have saved, where that is worth a change."""
    recorded = proven.recorded
    worth = max(_LEAST_SAVED, int(_LEAST_SHARE * recorded.peak_reserved_bytes))
    # No setting reserves less than what is allocated: this is all that there is to save.
    most_saved = recorded.peak_reserved_bytes - recorded.peak_allocated_bytes
    if most_saved < worth or runs < _ORDERS + len(ADVICE):
        return explanation
    everything = runs >= len(WORTH_TRYING) + 2 * _ORDERS
    tried = _asked(trace, proven, WORTH_TRYING if everything else ADVICE, quick=True)
    lived = [row for row in tried if row.oom is False]
    best = _best_of(trace, proven, lived)
    saved = recorded.peak_reserved_bytes - best.high_bytes if best is not None else 0
    before = next(
        (finding for finding in explanation.findings if finding.id == "unused_reserve"), None
    )
    if best is None or saved < worth:
        return _without_savings(explanation, proven, before, tried)
    too_much = recorded.peak_reserved_bytes + worth
    advised = [row for row in lived if row.settings.conf in ADVICE]
    worse = [row for row in advised if row.peak_reserved_bytes > too_much]
    variable = settings_variable(trace)
    finding = _saves(best, saved, recorded.peak_reserved_bytes, worse, variable, before)
    if before is None:
        return replace(explanation, findings=_by_savings(finding, saved, explanation.findings))
    return replace(explanation, findings=_in_place_of(before, finding, explanation.findings))


def _without_savings(
    explanation: Explanation, proven: Proven, before: Finding | None, tried: Sequence[WhatIf]
) -> Explanation:
    """The explanation where no setting saves much."""
    recorded, findings = proven.recorded, explanation.findings
    # Where expandable segments are on, the finding advises something else.
    if before is not None and not recorded.settings.expandable_segments:
        finding = _nothing_saves(before, tried, recorded.peak_reserved_bytes)
        findings = _in_place_of(before, finding, findings)
    return replace(explanation, findings=_what_to_do_first(findings))


def _best_of(trace: Trace, proven: Proven, lived: Sequence[WhatIf]) -> WhatIf | None:
    """The simplest of the settings that reserve least, replayed in all orders; None where it may
    fail.
    """
    if not lived:
        return None
    best = _asked(trace, proven, [simple_first(lived)[0].settings.conf])[0]
    return best if best.oom is False else None


def _in_place_of(
    before: Finding, finding: Finding, findings: Sequence[Finding]
) -> tuple[Finding, ...]:
    return tuple(finding if earlier is before else earlier for earlier in findings)


def _by_savings(finding: Finding, saved: int, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings with a new one before the first that saves less or has no fix."""
    place = 0
    for earlier in findings:
        if earlier.fix is None or (earlier.bytes or 0) < saved:
            break
        place += 1
    return (*findings[:place], finding, *findings[place:])


def _saves(
    best: WhatIf,
    saved: int,
    reserved: int,
    worse: Sequence[WhatIf],
    variable: str,
    before: Finding | None,
) -> Finding:
    evidence = [
        f"the recorded requests replayed with it: {format_size(best.high_bytes)} reserved"
        f" ({best.confidence})"
    ]
    if before is not None:
        evidence += before.evidence
    evidence += [
        f"{row.settings.conf} would make it worse: {format_size(row.peak_reserved_bytes)} reserved"
        for row in worse
    ]
    return Finding(
        id="settings_save",
        verdict=Verdict.PROVEN if best.confidence == Confidence.EXACT else Verdict.LIKELY,
        title=(
            f"{format_size(saved)} of the {format_size(reserved)} reserved need not be:"
            f" {best.settings.conf} reserves {format_size(best.high_bytes)}"
        ),
        bytes=saved,
        place=before.place if before is not None else None,
        evidence=tuple(evidence),
        fix=(
            f"run with {assignment(variable, best.settings.conf)}"
            f" to reserve {format_size(saved)} less"
        ),
    )


def _nothing_saves(before: Finding, tried: Sequence[WhatIf], reserved: int) -> Finding:
    """In place of the finding that much is reserved: no setting would change it much."""
    best = min(tried, key=lambda row: row.high_bytes, default=None)
    if best is None:
        return before
    best_words = (
        f"{best.settings.conf}, the best of {len(tried)} that were replayed,"
        f" reserves {format_size(best.high_bytes)}"
    )
    less = reserved - best.high_bytes
    avoids = "avoids much of" if less > 0 else "avoids"
    return replace(
        before,
        verdict=Verdict.NOT_A_PROBLEM,
        title=(
            f"no setting {avoids} the {format_size(before.bytes or 0)} reserved beyond what the"
            f" peak needed: {best_words}" + (f", {format_size(less)} less" if less > 0 else "")
        ),
        fix=None,
    )
