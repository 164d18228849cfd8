"""What replay adds to an explanation: proven counters, and what settings would have done for this very run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vramlens.analyses.explanation import Moment
from vramlens.analyses.finding import Finding
from vramlens.analyses.oom import settings_variable
from vramlens.errors import VramlensError
from vramlens.replay.answer import assignment
from vramlens.replay.proof import Proven, prove
from vramlens.replay.tune import WORTH_TRYING, distinct_settings, simple_first
from vramlens.replay.what_if import WhatIf, ask, question
from vramlens.units import MIB, format_size

if TYPE_CHECKING:
    from vramlens.analyses.explanation import Explanation
    from vramlens.trace import Trace

EVENTS_TO_REPLAY = 20_000_000
"""In all, for one explanation: about a second of one core."""

_EXPANDABLE = "expandable_segments:True"
_ADVICE = (_EXPANDABLE, "max_split_size_mb:128", "garbage_collection_threshold:0.8", "roundup_power2_divisions:8")
"""What people are told to try when memory ran out."""
_ORDERS = 12
"""How often a setting is replayed at most: in several orders of addresses."""
_CONFIRMED = 3
"""The best settings of a quick look, of which one is told."""
_LEAST_SAVED, _LEAST_SHARE = 64 * MIB, 0.05
_NOT_RECORDED = "replayed with the recorded requests; what the program would have asked for next is not recorded"


def with_replay(explanation: Explanation, trace: Trace, events_to_replay: int = EVENTS_TO_REPLAY) -> Explanation:
    """The explanation with what the replay of its device proves; as it is where nothing can be replayed.

    Args:
        events_to_replay: how many in all: bounds the time. Less is told of a recording that is too long for it.
    """
    peak = explanation.peak
    if peak is None:
        return explanation
    device = trace.devices[peak.device]
    runs = events_to_replay // max(1, len(device.events))
    if not runs:
        return explanation
    limit = explanation.oom.limit_bytes if explanation.oom is not None else None
    once = runs < 2 * _ORDERS
    try:
        proven = prove(trace, device, limit, once=once)
        if not proven.recorded.exact and limit is not None:  # a limit that was set later, or is rounded in a text
            proven = prove(trace, device, once=once)
    except VramlensError:
        return explanation
    if not proven.recorded.exact:
        return explanation
    explanation = _with_counters(explanation, proven)
    if explanation.oom is None or explanation.oom.survived:
        return _with_savings(explanation, trace, proven, runs)
    # Memory from before the recording cannot be moved to where another setting would have put it.
    return explanation if proven.recorded.warm else _with_verdicts(explanation, trace, proven, runs)


def _with_counters(explanation: Explanation, proven: Proven) -> Explanation:
    """The peaks as the allocator itself counts them, and the moment's figures, where nothing came before."""
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
    held = device.allocations.free_requested[alive] > heap.event
    taken = proven.taken_bytes[alive]
    segments = device.segments.size_bytes[device.segments.alive_after(heap.event)]
    return Moment(int(taken[held].sum()), int(taken.sum()), int(segments.sum()))


def _what_to_do_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda one: one.fix is None))


# After a failure that ended the program


def _with_verdicts(explanation: Explanation, trace: Trace, proven: Proven, runs: int) -> Explanation:
    """What each common advice would have done, and the setting that would have carried the run past its failure."""
    rows = _replayed(trace, proven, runs)
    helping = simple_first([row for row in rows if row.past_failure])
    failing = [row for row in rows if row.oom and row.settings.conf in _ADVICE]
    findings = list(explanation.findings)
    undecided = next((one for one in findings if one.id == "expandable_segments" and one.verdict == "possible"), None)
    if undecided is not None and (row := next((r for r in rows if r.settings.conf == _EXPANDABLE), None)) is not None:
        at = findings.index(undecided)
        if row.past_failure:
            del findings[at]
        elif row.oom:
            findings[at] = _expandable_fails(row)
        elif proven.recorded.limit.below_bytes is not None:
            findings[at] = _depends_on_the_limit(undecided, proven)
    others = [row for row in failing if row.settings.conf != _EXPANDABLE]
    if helping:
        leaks = sum(one.id == "leak" for one in findings) if explanation.oom and explanation.oom.cause == "leak" else 0
        findings.insert(leaks, _helps(helping, settings_variable(trace)))
    findings += [_others_fail(others)] if others else []
    return replace(explanation, findings=_what_to_do_first(findings))


def _replayed(trace: Trace, proven: Proven, runs: int) -> list[WhatIf]:
    """The common advice, and the settings that get past the failure: as many as there is time for."""
    if runs < 2 * len(_ADVICE):
        return []
    confirming = runs >= len(WORTH_TRYING) + _ORDERS * (_CONFIRMED + len(_ADVICE))
    quick = _asked(trace, proven, WORTH_TRYING if confirming else _ADVICE, quick=True)
    if not confirming:  # one order alone: what depends on orders, or on the limit, is not told
        unsure = proven.recorded.deferred_frees or proven.recorded.limit.below_bytes is not None
        return [row for row in quick if not row.ties and not unsure]
    helping = simple_first([row for row in quick if row.past_failure])[:_CONFIRMED]
    wanted = dict.fromkeys([*(row.settings.conf for row in helping), *_ADVICE])
    return _asked(trace, proven, tuple(wanted))


def _asked(trace: Trace, proven: Proven, confs: Sequence[str], *, quick: bool = False) -> list[WhatIf]:
    """The answers for those settings that this version knows and that differ from the recorded ones."""
    settings = distinct_settings(proven, confs, newest=trace.torch_version is not None)
    return ask(proven, [question(proven, one.conf) for one in settings], quick=quick)


def _helps(rows: Sequence[WhatIf], variable: str) -> Finding:
    best = rows[0]
    conf, reserved = best.settings.conf, _reserved(best)
    also = [f"{row.settings.conf} ({_reserved(row)})" for row in rows[1:]]
    return Finding(
        id="settings_help",
        verdict="likely",
        title=f"{conf} carries the run past this failure, with {reserved} reserved",
        bytes=best.peak_reserved_bytes,
        evidence=(_NOT_RECORDED, *([f"so do {', '.join(also)}"] if also else [])),
        fix=f"run with {assignment(variable, conf)}: it gets past this failure with {reserved} reserved",
    )


def _reserved(row: WhatIf) -> str:
    """Peak reserved, as far as it is known."""
    low, high = format_size(row.low_bytes), format_size(row.high_bytes)
    return low if low == high else f"{low} to {high}"


def _expandable_fails(row: WhatIf) -> Finding:
    return Finding(
        id="expandable_segments",
        verdict="not a problem",
        title=(
            f"expandable_segments does not help: replayed with it, {_failure(row)}, with"
            f" {format_size(row.peak_reserved_bytes)} reserved"
        ),
        bytes=0,
        evidence=("the recorded requests, run through the allocator under that setting",),
    )


def _depends_on_the_limit(undecided: Finding, proven: Proven) -> Finding:
    """What sums left open, where replay would know it if it knew the limit."""
    limit = proven.recorded.limit
    low, high = format_size(limit.bytes or 0), format_size(limit.below_bytes or 0)
    return replace(
        undecided,
        title=f"expandable_segments is undecided: it depends on the exact limit, somewhere from {low} to {high}",
        evidence=(*undecided.evidence, "the error's text tells the limit: give it with --log"),
    )


def _others_fail(rows: Sequence[WhatIf]) -> Finding:
    """One line for all other advice that fails too."""
    names = [f"{row.settings.conf} ({_how_far(row)})" for row in rows]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return Finding(
        id="settings_do_not_help",
        verdict="not a problem",
        title=f"replayed, the run is out of memory all the same with {listed}",
        bytes=0,
        evidence=tuple(f"{row.settings.conf}: {_failure(row)}" for row in rows),
    )


def _how_far(row: WhatIf) -> str:
    """What a run that fails has reserved; which request it is, where that is the first."""
    if not row.peak_reserved_bytes and row.failed_bytes:
        return f"its first request, {format_size(row.failed_bytes)}, fails"
    return f"{format_size(row.peak_reserved_bytes)} reserved"


def _failure(row: WhatIf) -> str:
    size = format_size(row.failed_bytes or 0)
    return (
        f"a request of {size} fails"
        if row.oom_event is None
        else f"a request of {size} fails (event {row.oom_event:,})"
    )


# After a run that lived


def _with_savings(explanation: Explanation, trace: Trace, proven: Proven, runs: int) -> Explanation:
    """What the best setting would have saved, where that is worth a change."""
    recorded = proven.recorded
    worth = max(_LEAST_SAVED, int(_LEAST_SHARE * recorded.peak_reserved_bytes))
    # No setting reserves less than what is allocated: this is all that there is to save.
    if recorded.peak_reserved_bytes - recorded.peak_allocated_bytes < worth or runs < _ORDERS + len(_ADVICE):
        return explanation
    everything = runs >= len(WORTH_TRYING) + 2 * _ORDERS
    quick = _asked(trace, proven, WORTH_TRYING if everything else _ADVICE, quick=True)
    lived = simple_first([row for row in quick if row.oom is False])
    best = _asked(trace, proven, [lived[0].settings.conf])[0] if lived else None
    saved = recorded.peak_reserved_bytes - best.high_bytes if best is not None and best.oom is False else 0
    worse = [row for row in quick if row.settings.conf in _ADVICE and row.oom is False]
    worse = [row for row in worse if row.peak_reserved_bytes > recorded.peak_reserved_bytes + worth]
    findings = list(explanation.findings)
    before = next((one for one in findings if one.id == "unused_reserve"), None)
    if best is None or saved < worth:
        if before is not None and not recorded.settings.expandable_segments:  # else it advises something else
            findings[findings.index(before)] = _nothing_saves(before, quick, recorded.peak_reserved_bytes)
        return replace(explanation, findings=_what_to_do_first(findings))
    finding = _saves(best, saved, recorded.peak_reserved_bytes, worse, settings_variable(trace), before)
    if before is not None:
        findings[findings.index(before)] = finding
    else:
        at = next((n for n, one in enumerate(findings) if one.fix is None or (one.bytes or 0) < saved), len(findings))
        findings.insert(at, finding)
    return replace(explanation, findings=tuple(findings))


def _saves(
    best: WhatIf, saved: int, reserved: int, worse: Sequence[WhatIf], variable: str, before: Finding | None
) -> Finding:
    evidence = [f"the recorded requests replayed with it: {format_size(best.high_bytes)} reserved ({best.confidence})"]
    if before is not None:
        evidence += before.evidence
    evidence += [
        f"{row.settings.conf} would make it worse: {format_size(row.peak_reserved_bytes)} reserved" for row in worse
    ]
    return Finding(
        id="settings_save",
        verdict="proven" if best.confidence == "exact" else "likely",
        title=(
            f"{format_size(saved)} of the {format_size(reserved)} reserved need not be: {best.settings.conf} reserves"
            f" {format_size(best.high_bytes)}"
        ),
        bytes=saved,
        place=before.place if before is not None else None,
        evidence=tuple(evidence),
        fix=f"run with {assignment(variable, best.settings.conf)} to reserve {format_size(saved)} less",
    )


def _nothing_saves(before: Finding, tried: Sequence[WhatIf], reserved: int) -> Finding:
    """In place of the finding that much is reserved: no setting would change it much."""
    best = min(tried, key=lambda row: row.high_bytes, default=None)
    if best is None:
        return before
    said = f"{best.settings.conf}, the best of {len(tried)} that were replayed, reserves {format_size(best.high_bytes)}"
    less = reserved - best.high_bytes
    avoids = "avoids much of" if less > 0 else "avoids"
    return replace(
        before,
        verdict="not a problem",
        title=(
            f"no setting {avoids} the {format_size(before.bytes or 0)} reserved beyond what the peak needed: {said}"
            + (f", {format_size(less)} less" if less > 0 else "")
        ),
        fix=None,
    )
