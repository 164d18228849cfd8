"""An explanation with the judgement of its failure: cause, need, settings, and what to do first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from vramlens.analyses.failure.allocator_retry import has_fitting_block
from vramlens.analyses.failure.cause import (
    CauseFacts,
    cause_in_whole_run,
    cause_of,
    is_climbing,
    is_growing,
    is_rising,
    may_be_growing,
)
from vramlens.analyses.failure.headline import SLIGHT, HeadlineFacts, headline_of
from vramlens.analyses.failure.likeness.left_behind import left_behind_bytes
from vramlens.analyses.failure.need import EARLIER_STEP, EXPANDABLE, WHOLE_RUN, Need, SettingVerdict
from vramlens.analyses.failure.oom import failure_of, settings_variable
from vramlens.analyses.failure.step_evidence import are_steps, leaks_of_steps
from vramlens.analyses.finding import Finding
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.analyses.memory.run_shape import step_peaks
from vramlens.ground.verdict import Confidence, Verdict
from vramlens.ground.vocabulary import Cause
from vramlens.replay.answer import assignment
from vramlens.replay.need.advice_order import with_growth_to_come
from vramlens.replay.need.batch_findings import batch_of_first_step, batch_that_fits
from vramlens.replay.need.failure_order import (
    OrderFacts,
    about_failure,
    in_order,
    unmistakable,
)
from vramlens.replay.need.failure_verdict import ReplayJudgement, judgement_of
from vramlens.replay.need.limit_advice import (
    Outlook,
    bytes_of_earlier_passes,
    growth_by_steps,
    has_room,
    limit_advice,
    missing_bytes,
    with_limit,
    with_shortage,
)
from vramlens.replay.need.whole_run import need_of_predicted_run
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution
    from vramlens.analyses.explanation import Explanation, OomVerdict
    from vramlens.replay.proof import Proven

_RUNS_FOR_BATCH = 40
_SOON_FILLS = 0.001
"""Of what could be reserved: a thousand steps that each leave as much behind fill it."""


def with_judgement(
    explanation: Explanation, view: Attribution, proven: Proven, runs: int
) -> Explanation:
    """The explanation of a failure that ended its program, with what replay has to say about it."""
    oom = explanation.oom
    assert oom is not None
    step_leaks = leaks_of_steps(view, explanation.leaks)
    judged = judgement_of(view, proven, oom, runs, step_leaks)
    capacity = proven.recorded.limit.bytes
    facts = _facts(view, judged, capacity, step_leaks)
    verdict = _verdict(explanation, view, proven, judged, facts)
    need = verdict.need
    assert need is not None
    lasting = judged.tells_what_follows and not facts.grows
    outlook = _outlook(judged, facts, view)
    findings = about_failure(explanation, verdict.cause, step_leaks)
    findings = _about_expandable(findings, verdict, proven)
    if facts.grows:
        why_open = f"memory grew {growth_by_steps(view)}"
    elif facts.climbing:
        why_open = "steps needed more and more so far"
    else:
        why_open = _why_open(need, lasting=judged.tells_what_follows)
    findings += _about_settings(view, verdict, need, capacity, why_open)
    advice = limit_advice(view, verdict, need, outlook)
    verdict = replace(verdict, limit=advice)
    findings = [with_limit(finding, view, verdict, advice) for finding in findings]
    if facts.grows and need.basis == WHOLE_RUN:
        findings = [with_growth_to_come(finding) for finding in findings]
    missing = missing_bytes(need, capacity)
    findings = [with_shortage(finding, missing) for finding in findings]
    if verdict.cause == Cause.LEAK:  # no batch is small enough for it
        findings = _without_rough_batch(findings)
    elif about_batch := _about_batch(view, proven, judged, need, runs, lasting=lasting):
        findings = [*_without_rough_batch(findings), *about_batch]
    order_facts = OrderFacts(
        capacity,
        step_leaks,
        facts.growing,
        missing_bytes=missing,
        has_room=has_room(verdict, need, outlook),
        is_limit_known=need.high_bytes is not None,
    )
    in_their_order = in_order(explanation, findings, view, verdict, order_facts)
    return replace(explanation, oom=verdict, findings=in_their_order)


def _outlook(judged: ReplayJudgement, facts: CauseFacts, view: Attribution) -> Outlook:
    lasting = judged.tells_what_follows and judged.is_like_several_steps and not facts.grows
    return Outlook(
        lasting, facts.grows, facts.climbing, kept_by_passes=bytes_of_earlier_passes(view)
    )


def _verdict(
    explanation: Explanation,
    view: Attribution,
    proven: Proven,
    judged: ReplayJudgement,
    facts: CauseFacts,
) -> OomVerdict:
    """The verdict with what replay knows: cause, need and settings."""
    oom = explanation.oom
    assert oom is not None
    settings = judged.settings
    if facts.grows or facts.climbing:
        settings = tuple(_open_while_growing(row) for row in settings)
    cause = cause_of(oom, judged.need, settings, facts)
    need = judged.need
    if whole_need := need_of_predicted_run(view.trace.meta):
        need = replace(whole_need, reason=need.reason)
        cause = cause_in_whole_run(cause, need, facts)
    if cause != Cause.LEAK:  # else its size is not why this step failed
        need = replace(need, reason=_reason(view, judged) or need.reason)
    return replace(
        oom,
        cause=cause,
        headline=_headline(explanation, view, proven, need, cause),
        need=need,
        settings=settings,
    )


def _open_while_growing(row: SettingVerdict) -> SettingVerdict:
    """What a setting does where memory, or the need, grows with each step: it may carry this one, not all."""
    if row.lives is not True:
        return row
    return replace(row, lives=None, confidence=Confidence.CONDITIONAL, past_failure=True)


def _about_batch(
    view: Attribution,
    proven: Proven,
    judged: ReplayJudgement,
    need: Need,
    runs: int,
    *,
    lasting: bool,
) -> Sequence[Finding]:
    """The largest batch that fits, as far as it is known."""
    capacity = proven.recorded.limit.bytes
    finding = None
    if judged.projection is None:
        finding = batch_of_first_step(view, need, capacity)
    elif (
        runs >= _RUNS_FOR_BATCH and not proven.recorded.warm and judged.need.high_bytes is not None
    ):
        finding = batch_that_fits(view, proven, judged, lasting=lasting)
    return () if finding is None else (finding,)


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
        fits_a_free_block=has_fitting_block(view, failure),
        largest_use=oom.largest_use,
    )
    return headline_of(facts)


def _without_rough_batch(findings: Sequence[Finding]) -> list[Finding]:
    """The findings without a rough word on the batch: more is known of it."""
    return [
        replace(finding, fix=finding.fix_without_batch) if finding.fix_without_batch else finding
        for finding in findings
    ]


def _facts(
    view: Attribution,
    judged: ReplayJudgement,
    capacity: int | None,
    step_leaks: Sequence[RecordedLeak],
) -> CauseFacts:
    leaked = sum(leak.bytes for leak in step_leaks if leak.sure)
    peaks = step_peaks(view)
    step = _failed_step(view)
    start_bytes = peaks.start_bytes[: step + 1] if are_steps(view) else ()
    earlier = max(peaks.own_bytes[1 if step > 1 else 0 : step], default=0)
    start = peaks.start_bytes[step] if step < len(peaks.start_bytes) else 0
    needed = max(0, (judged.need.floor_bytes or 0) - start)
    return CauseFacts(
        capacity_bytes=capacity,
        leaked_bytes=leaked,
        earlier_bytes=earlier,
        needed_bytes=needed,
        is_as_before=judged.projection is not None and judged.projection.scaling.is_same,
        rising=is_rising(peaks.own_bytes[:step]),
        climbing=are_steps(view) and is_climbing((*peaks.own_bytes[:step], needed)),
        growing=leaked > 0 or is_growing(start_bytes, capacity or 0),
        may_be_growing=may_be_growing(start_bytes, capacity or 0)
        or any(not leak.is_small for leak in unmistakable(view, step_leaks))
        or _leave_behind(view, judged, capacity),
    )


def _leave_behind(view: Attribution, judged: ReplayJudgement, capacity: int | None) -> bool:
    """Whether what one step leaves behind, as far as the failed one shows, would soon fill it all."""
    if judged.projection is None or not judged.projection.of_steps:
        return False
    left_bytes = left_behind_bytes(view, judged.projection.template)
    return left_bytes >= _SOON_FILLS * (capacity or 1)


def _failed_step(view: Attribution) -> int:
    event = np.array([view.device.out_of_memory[-1].event])
    return int(view.steps.of(event)[0]) if len(view.steps) else 0


def _reason(view: Attribution, judged: ReplayJudgement) -> str:
    """What grew against the step before, and at which line, or what is kept for longer; "" where
    nothing is.
    """
    projection = judged.projection
    if projection is not None and projection.kept_longer is not None:
        return projection.kept_longer.words
    if projection is None or abs(projection.scaling.scale - 1) <= SLIGHT:
        return ""
    place = view.place_of_stack(view.device.out_of_memory[-1].stack)
    line = f" (line {place.line})" if place is not None else ""
    return f"this batch is {projection.scaling.scale:.2f}x an earlier one{line}"


def _about_expandable(
    findings: Sequence[Finding], oom: OomVerdict, proven: Proven
) -> list[Finding]:
    """The findings, where replay decides what sums left open about the message's own hint."""
    row = next(row for row in oom.settings if row.conf == EXPANDABLE)
    changed = []
    for finding in findings:
        if finding.id == "expandable_segments":
            changed += _expandable_decided(finding, row, proven)
        else:
            changed.append(finding)
    return changed


def _expandable_decided(finding: Finding, row: SettingVerdict, proven: Proven) -> list[Finding]:
    """The finding about expandable segments, as replay decides it; nothing where they help."""
    if finding.verdict != Verdict.POSSIBLE:
        is_refuted = row.lives is False and not row.dies_after_bytes
        is_refuted = is_refuted and "these numbers do not show" in finding.title
        return [_expandable_fails(row)] if is_refuted else [finding]
    if row.lives is False:
        return [_expandable_fails(row)]
    if row.lives is True or row.past_failure:
        return []
    if proven.recorded.limit.below_bytes is not None:
        return [_depends_on_the_limit(finding, proven)]
    return [finding]


def _expandable_fails(row: SettingVerdict) -> Finding:
    reserved = (
        f" ({format_size(row.peak_reserved_bytes)} reserved)" if row.peak_reserved_bytes else ""
    )
    failed = (
        f"a request for {format_size(row.failed_bytes)} fails"
        if row.failed_bytes
        else "the run still fails"
    )
    title = f"in a replay with it, {failed}{reserved}"
    if row.dies_after_bytes:
        later = format_size(row.dies_after_bytes)
        title = f"it only delays the failure. In a replay the run fails {later} of requests later"
    return Finding(
        id="expandable_segments",
        verdict=Verdict.NOT_A_PROBLEM,
        title=f"expandable_segments will not help: {title}",
        bytes=0,
        evidence=(
            "the replay takes the recorded requests, then those of an earlier step for the rest",
        ),
    )


def _depends_on_the_limit(undecided: Finding, proven: Proven) -> Finding:
    """What sums left open, where replay would know it if it knew the limit."""
    limit = proven.recorded.limit
    low, high = format_size(limit.bytes or 0), format_size(limit.below_bytes or 0)
    return replace(
        undecided,
        title="expandable_segments may or may not help: that depends on the exact limit, "
        f"between {low} and {high}",
        evidence=(*undecided.evidence, "the error message has the exact limit: pass it with --log"),
    )


def _about_settings(
    view: Attribution, oom: OomVerdict, need: Need, capacity: int | None, why_open: str
) -> list[Finding]:
    """The setting that carries the run; those that may; those that do not, in one line."""
    variable = settings_variable(view.trace)
    rows_by_life: dict[bool | None, list[SettingVerdict]] = {True: [], False: [], None: []}
    for row in oom.settings:
        rows_by_life[row.lives].append(row)
    carrying = rows_by_life[True]
    failing = [row for row in rows_by_life[False] if row.conf != EXPANDABLE]
    undecided = [row for row in rows_by_life[None] if row.past_failure]
    findings = []
    if carrying:
        findings.append(_carries(carrying, variable, capacity))
    elif undecided:
        findings.append(_may_carry(undecided, variable, why_open))
    if failing:
        findings.append(_do_not_carry(failing, need))
    return findings


def _carries(rows: Sequence[SettingVerdict], variable: str, capacity: int | None) -> Finding:
    best = rows[0]
    reserved = format_size(best.peak_reserved_bytes)
    of_limit = f" of {format_size(capacity)}" if capacity is not None else ""
    also = [f"{row.conf} ({format_size(row.peak_reserved_bytes)})" for row in rows[1:]]
    verb = "does" if len(also) == 1 else "do"
    return Finding(
        id="settings_help",
        verdict=Verdict.LIKELY,
        title=f"{best.conf} lets this step finish, with {reserved}{of_limit} reserved",
        bytes=best.peak_reserved_bytes,
        evidence=(
            "the replay takes the recorded requests, then those of an earlier step for the rest",
            *([f"so {verb} {', '.join(also)}"] if also else []),
        ),
        fix=f"run with {assignment(variable, best.conf)}",
    )


def _why_open(need: Need, *, lasting: bool) -> str:
    """Why it is not known whether a setting is enough, where memory does not grow."""
    if need.basis == EARLIER_STEP and not lasting:
        return "a later step may be larger"
    if need.basis == EARLIER_STEP:
        return "the predicted peak is too close to the limit to tell"
    return "the recording ends there"


def _may_carry(rows: Sequence[SettingVerdict], variable: str, why: str) -> Finding:
    best = rows[0]
    reserved = format_size(best.peak_reserved_bytes)
    alternatives = f" (or {', '.join(row.conf for row in rows[1:])})" if len(rows) > 1 else ""
    return Finding(
        id="settings_may_help",
        verdict=Verdict.POSSIBLE,
        title=f"{best.conf} gets past this failure ({reserved} reserved) but may not be enough: "
        f"{why}",
        bytes=best.peak_reserved_bytes,
        fix=f"try {assignment(variable, best.conf)}{alternatives}",
    )


def _do_not_carry(rows: Sequence[SettingVerdict], need: Need) -> Finding:
    """One line for all that does not help; what only delays says for how long."""
    words = [f"{row.conf} ({_how_far(row)})" for row in rows]
    listed = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    return Finding(
        id="settings_do_not_help",
        verdict=Verdict.NOT_A_PROBLEM,
        title=f"in a replay, the run still fails with {listed}",
        bytes=0,
        evidence=("each setting was replayed",) if need.basis is not None else (),
    )


def _how_far(row: SettingVerdict) -> str:
    if row.confidence == Confidence.EXACT:
        return "changes nothing"
    if row.dies_after_bytes:
        later = format_size(row.dies_after_bytes)
        return f"only delays the failure: it fails {later} of requests later"
    if not row.peak_reserved_bytes and row.failed_bytes:
        return f"the first request, {format_size(row.failed_bytes)}, fails"
    return (
        f"{format_size(row.peak_reserved_bytes)} reserved"
        if row.peak_reserved_bytes
        else "too much memory is in use"
    )
