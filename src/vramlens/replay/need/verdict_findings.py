"""An explanation with the judgement of its failure: cause, need, settings, and what to do first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from vramlens.analyses.failure.cause import CauseFacts, cause_of, is_rising
from vramlens.analyses.failure.headline import HeadlineFacts, headline_of
from vramlens.analyses.failure.need import EARLIER_STEP, EXPANDABLE, Need, SettingVerdict
from vramlens.analyses.failure.oom import failure_of, settings_variable
from vramlens.analyses.failure.step_evidence import are_steps
from vramlens.analyses.finding import Finding
from vramlens.analyses.memory.timeline import step_peaks
from vramlens.ground.verdict import Verdict
from vramlens.replay.answer import assignment
from vramlens.replay.need.failure_verdict import Judgement, judgement_of
from vramlens.replay.need.smaller_batch import largest_share
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution
    from vramlens.analyses.explanation import Explanation, OomVerdict
    from vramlens.replay.proof import Proven

_FIRST = (
    "request_too_large",
    "settings_help",
    "leak",
    "smaller_batch",
    "settings_may_help",
    "fragmented_request",
    "process_limit",
    "device_full",
)
_LARGE = 0.05
"""Of what could be reserved: a leak as large is worth saying before what makes the step smaller."""


def with_judgement(
    explanation: Explanation, view: Attribution, proven: Proven, runs: int
) -> Explanation:
    """The explanation of a failure that ended its program, with what replay has to say about it."""
    oom = explanation.oom
    assert oom is not None
    judged = judgement_of(view, proven, oom, runs)
    limit = proven.recorded.limit
    facts = _facts(explanation, view, judged.need, limit.bytes)
    cause = cause_of(oom, judged.need, judged.settings, facts)
    reason = _reason(view, judged)
    need = replace(judged.need, reason=reason or judged.need.reason)
    verdict = replace(
        oom,
        cause=cause,
        headline=_headline(explanation, view, proven, need, cause),
        need=need,
        settings=judged.settings,
    )
    findings = [
        one
        for one in explanation.findings
        if one.id != "fragmented_request" or cause == "fragmentation"
    ]
    findings = _about_expandable(findings, verdict, proven)
    findings += _about_settings(view, verdict, need, limit.bytes)
    findings = [_with_limit(one, view, need) for one in findings]
    if judged.projection is not None and runs >= _RUNS_FOR_BATCH and not proven.recorded.warm:
        findings += _about_batch(view, proven, judged, limit.bytes)
    leaking = facts.leaked_bytes >= _LARGE * (limit.bytes or 1)
    order = _order(cause, leaking=leaking)
    return replace(
        explanation,
        oom=verdict,
        findings=tuple(sorted(findings, key=lambda one: _rank(one, order))),
    )


_RUNS_FOR_BATCH = 40


def _headline(
    explanation: Explanation, view: Attribution, proven: Proven, need: Need, cause: str | None
) -> str:
    failure, oom, limit = failure_of(view), explanation.oom, proven.recorded.limit
    assert failure is not None
    assert oom is not None
    facts = HeadlineFacts(
        failure=failure,
        wall=oom.wall,
        cause=cause,
        leaks=explanation.leaks,
        short_bytes=oom.short_by_bytes,
        need=need,
        capacity_bytes=limit.bytes,
        is_rough=limit.below_bytes is not None,
    )
    return headline_of(facts)


def _order(cause: str | None, *, leaking: bool) -> tuple[str, ...]:
    """What comes first: what makes the run live, then what may."""
    left_out = set() if leaking else {"leak"}
    if cause != "fragmentation":  # what only may help comes after all that does
        left_out.add("settings_may_help")
    return tuple(name for name in _FIRST if name not in left_out)


def _rank(finding: Finding, order: tuple[str, ...]) -> tuple[bool, bool, int]:
    """The order among the others stays."""
    last = finding.id == "settings_may_help" and finding.id not in order
    return finding.fix is None, last, order.index(finding.id) if finding.id in order else len(order)


def _facts(
    explanation: Explanation, view: Attribution, need: Need, capacity: int | None
) -> CauseFacts:
    leaked = sum(leak.bytes for leak in explanation.leaks if leak.sure and leak.rows is not None)
    peaks = step_peaks(view)
    event = view.device.out_of_memory[-1].event
    step = int(view.steps.of(np.array([event]))[0]) if len(view.steps) else 0
    earlier = max(peaks.own_bytes[1 if step > 1 else 0 : step], default=0)
    start = peaks.start_bytes[step] if step < len(peaks.start_bytes) else 0
    return CauseFacts(
        capacity_bytes=capacity,
        leaked_bytes=leaked if are_steps(view) else 0,
        earlier_bytes=earlier,
        needed_bytes=max(0, (need.floor_bytes or 0) - start),
        rising=is_rising(peaks.own_bytes[:step]),
    )


def _reason(view: Attribution, judged: Judgement) -> str:
    """What grew against the step before, and at which line; "" where nothing did."""
    projection = judged.projection
    if projection is None or abs(projection.scaling.scale - 1) <= 0.02:
        return ""
    place = view.place_of_stack(view.device.out_of_memory[-1].stack)
    line = f" (line {place.line})" if place is not None else ""
    return f"this batch is {projection.scaling.scale:.2f} × that of an earlier step{line}"


def _about_expandable(
    findings: Sequence[Finding], oom: OomVerdict, proven: Proven
) -> list[Finding]:
    """The findings, where replay decides what sums left open about the message's own hint."""
    row = next(row for row in oom.settings if row.conf == EXPANDABLE)
    changed = []
    for finding in findings:
        is_open = finding.id == "expandable_segments" and finding.verdict == Verdict.POSSIBLE
        if not is_open:
            is_refuted = (
                row.lives is False
                and finding.id == "expandable_segments"
                and not row.dies_after_bytes
            )
            changed.append(
                _expandable_fails(row)
                if is_refuted and "sums cannot tell" in finding.title
                else finding
            )
        elif row.lives is False:
            changed.append(_expandable_fails(row))
        elif (
            row.lives is None
            and not row.past_failure
            and proven.recorded.limit.below_bytes is not None
        ):
            changed.append(_depends_on_the_limit(finding, proven))
        elif row.lives is None and not row.past_failure:
            changed.append(finding)
    return changed


def _expandable_fails(row: SettingVerdict) -> Finding:
    reserved = (
        f", with {format_size(row.peak_reserved_bytes)} reserved" if row.peak_reserved_bytes else ""
    )
    failed = (
        f"a request of {format_size(row.failed_bytes)} fails"
        if row.failed_bytes
        else "it fails as well"
    )
    if row.dies_after_bytes:
        failed = f"it {_how_far(row)}"
    return Finding(
        id="expandable_segments",
        verdict=Verdict.NOT_A_PROBLEM,
        title=f"expandable_segments does not help: replayed with it, {failed}{reserved}",
        bytes=0,
        evidence=(
            "the recorded requests, and those of an earlier step for the rest, under that setting",
        ),
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


def _about_settings(
    view: Attribution, oom: OomVerdict, need: Need, capacity: int | None
) -> list[Finding]:
    """The setting that carries the run; those that may; those that do not, in one line."""
    variable = settings_variable(view.trace)
    carrying = [row for row in oom.settings if row.lives is True]
    failing = [row for row in oom.settings if row.lives is False and row.conf != EXPANDABLE]
    open_ones = [row for row in oom.settings if row.lives is None and row.past_failure]
    found = []
    if carrying:
        found.append(_carries(carrying, variable, need, capacity))
    elif open_ones:
        found.append(_may_carry(open_ones, variable, need))
    if failing:
        found.append(_do_not_carry(failing, need))
    return found


def _carries(
    rows: Sequence[SettingVerdict], variable: str, need: Need, capacity: int | None
) -> Finding:
    best = rows[0]
    reserved = format_size(best.peak_reserved_bytes)
    of_limit = f" of {format_size(capacity)}" if capacity is not None else ""
    also = [f"{row.conf} ({format_size(row.peak_reserved_bytes)})" for row in rows[1:]]
    return Finding(
        id="settings_help",
        verdict=Verdict.LIKELY,
        title=f"{best.conf} carries the run: its step finishes with {reserved}{of_limit} reserved",
        bytes=best.peak_reserved_bytes,
        evidence=(
            "the recorded requests, and those of an earlier step for the rest, replayed with it",
            *([f"so do {', '.join(also)}"] if also else []),
        ),
        fix=f"run with {assignment(variable, best.conf)}: the step finishes with {reserved}{of_limit} reserved",
    )


def _may_carry(rows: Sequence[SettingVerdict], variable: str, need: Need) -> Finding:
    best = rows[0]
    reserved = format_size(best.peak_reserved_bytes)
    why = (
        "too near the limit to tell"
        if need.basis == EARLIER_STEP
        else "what comes after is not recorded"
    )
    others = f" (or {', '.join(row.conf for row in rows[1:])})" if len(rows) > 1 else ""
    return Finding(
        id="settings_may_help",
        verdict=Verdict.POSSIBLE,
        title=f"{best.conf} gets past this failure, with {reserved} reserved, and may carry the run: {why}",
        bytes=best.peak_reserved_bytes,
        fix=f"try {assignment(variable, best.conf)}{others}: it gets past this failure with {reserved} reserved,"
        " and may or may not be enough",
    )


def _do_not_carry(rows: Sequence[SettingVerdict], need: Need) -> Finding:
    """One line for all that does not help; what only delays says for how long."""
    words = [f"{row.conf} ({_how_far(row)})" for row in rows]
    listed = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    return Finding(
        id="settings_do_not_help",
        verdict=Verdict.NOT_A_PROBLEM,
        title=f"replayed, the run is out of memory all the same with {listed}",
        bytes=0,
        evidence=("replayed under each setting",) if need.basis is not None else (),
    )


def _how_far(row: SettingVerdict) -> str:
    if row.dies_after_bytes:
        return f"gets past this request and fails {format_size(row.dies_after_bytes)} later"
    if not row.peak_reserved_bytes and row.failed_bytes:
        return f"its first request, {format_size(row.failed_bytes)}, fails"
    return (
        f"{format_size(row.peak_reserved_bytes)} reserved"
        if row.peak_reserved_bytes
        else "too much is alive"
    )


def _with_limit(finding: Finding, view: Attribution, need: Need) -> Finding:
    """The advice about the limit, with what the need wants rather than the one request."""
    if finding.id != "process_limit" or need.basis is None:
        return finding
    size = need.high_bytes or need.low_bytes
    least = "at least " if need.high_bytes is None else ""
    if need.peak_reserved_bytes is not None:
        words = f"{format_size(size)}: this step needs {format_size(need.peak_reserved_bytes)}"
    else:
        words = (
            f"{least}{format_size(size)}: this step needs at least {format_size(need.low_bytes)}"
        )
    total = view.trace.total_bytes.get(view.device.device)
    if total:
        fraction = min(1.0, -(-size * 10_000 // total) / 10_000)
        fix = f"raise it: torch.cuda.set_per_process_memory_fraction({fraction:.4f}) allows {words}"
    else:
        fix = f"raise the fraction given to torch.cuda.set_per_process_memory_fraction to allow {words}"
    return replace(finding, fix=fix)


def _about_batch(
    view: Attribution, proven: Proven, judged: Judgement, capacity: int | None
) -> list[Finding]:
    """The largest batch that fits, as a share of this one."""
    assert judged.projection is not None
    if capacity is None:
        return []
    found = largest_share(proven, judged.projection, view)
    if found is None:
        return []
    size = f"{format_size(found.peak_reserved_bytes)} of {format_size(capacity)}"
    lasting = judged.projection.tells_what_follows
    doubt = "" if lasting else "; a later step may be larger"
    return [
        Finding(
            id="smaller_batch",
            verdict=Verdict.LIKELY if lasting else Verdict.POSSIBLE,
            title=f"{found.share:.0%} of this batch fit: {size}",
            bytes=found.peak_reserved_bytes,
            evidence=(
                "the same requests at that scale, replayed; what does not grow with the batch stays",
            ),
            fix=f"make the batch {found.share:.2f} × as large, rounded down: the step finishes with {size}"
            f" reserved{doubt}",
        )
    ]
