"""The findings of a failure that ended its program, in the order in which its leaks and its need make them useful."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vramlens.analyses.attribution.training import Training
from vramlens.analyses.failure.cause import is_growing
from vramlens.analyses.failure.step_evidence import are_steps, leaks_of_steps
from vramlens.analyses.finding import Finding, Place
from vramlens.analyses.leaks.certainty import PATTERN
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.analyses.memory.run_shape import step_peaks
from vramlens.ground.verdict import Verdict
from vramlens.ground.vocabulary import Cause
from vramlens.replay.need.advice_order import order_of_advice, rank_of, told_once, with_higher_limit

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution
    from vramlens.analyses.explanation import Explanation, OomVerdict

_LARGE = 0.05
"""Of what could be reserved: a leak as large is worth saying before what makes the step smaller."""


@dataclass(frozen=True, slots=True)
class OrderFacts:
    """What decides which advice comes first, beside the findings.

    Attributes:
        capacity_bytes: what the process could reserve; None where that is not known.
        step_leaks: the leaks that grow with steps.
        growing: whether what steps leave behind grows.
        missing_bytes: by how much the step needs more than there is; 0 where nothing tells.
        has_room: whether the device has the memory that a higher limit would allow.
        is_limit_known: whether it is known which limit is enough.
    """

    capacity_bytes: int | None
    step_leaks: Sequence[RecordedLeak]
    growing: bool
    missing_bytes: int = 0
    has_room: bool = False
    is_limit_known: bool = False


def with_order_of_sums(explanation: Explanation, view: Attribution) -> Explanation:
    """The explanation of a failure that nothing replays, with the advice first that its sums speak for."""
    oom = explanation.oom
    assert oom is not None
    step_leaks = leaks_of_steps(view, explanation.leaks)
    findings = about_failure(explanation, oom.cause or Cause.FRAGMENTATION, step_leaks)
    capacity = oom.limit_bytes or view.trace.total_bytes.get(view.device.device)
    start_bytes = step_peaks(view).start_bytes if are_steps(view) else ()
    growing = any(leak.sure for leak in step_leaks) or is_growing(start_bytes, capacity or 0)
    has_room = (oom.free_bytes or 0) > (oom.tried_bytes or 0)
    facts = OrderFacts(capacity, step_leaks, growing, has_room=has_room)
    return replace(explanation, findings=in_order(explanation, findings, view, oom, facts))


def about_failure(
    explanation: Explanation, cause: str | None, step_leaks: Sequence[RecordedLeak]
) -> list[Finding]:
    """The findings of the sums that the cause leaves standing."""
    step_places = {leak.place for leak in step_leaks}
    return [
        _of_a_pattern(finding, explanation.leaks, step_places)
        for finding in explanation.findings
        if finding.id != "fragmented_request" or cause == Cause.FRAGMENTATION
    ]


def _of_a_pattern(
    finding: Finding, leaks: Sequence[RecordedLeak], step_places: Collection[Place | None]
) -> Finding:
    """A leak as merely possible, where what repeats may be a part of one step.

    Args:
        step_places: where leaks grow with what is known to be steps.
    """
    if finding.id != "leak" or finding.place in step_places:
        return finding
    outside_pytorch = all(leak.rows is None for leak in leaks if leak.place == finding.place)
    return finding if outside_pytorch else replace(finding, verdict=Verdict.POSSIBLE)


def in_order(
    explanation: Explanation,
    findings: Sequence[Finding],
    view: Attribution,
    oom: OomVerdict,
    facts: OrderFacts,
) -> tuple[Finding, ...]:
    """The findings, what makes the run live first, without what another one explains."""
    sizes = view.device.allocations.requested_bytes
    leaked_bytes = sum(leak.bytes for leak in unmistakable(view, facts.step_leaks))
    leaking = facts.growing and leaked_bytes >= _LARGE * (facts.capacity_bytes or 1)
    order = order_of_advice(
        oom,
        findings,
        sizes,
        leaking=leaking,
        only_program_keeps=_is_kept_by_program(view, explanation.leaks),
        missing_bytes=facts.missing_bytes,
    )
    if not leaking and facts.has_room:
        order = with_higher_limit(order, is_known=facts.is_limit_known)
    ranked = sorted(findings, key=lambda finding: rank_of(finding, order, facts.capacity_bytes))
    return told_once(ranked, sizes)


def unmistakable(view: Attribution, leaks: Sequence[RecordedLeak]) -> Sequence[RecordedLeak]:
    """The leaks that are more than one way to read what repeats: a loop over tokens keeps its steps'
    results, too, until its one backward pass, and a replay buffer fills.
    """
    if any(leak.sure for leak in leaks):
        return leaks
    if view.steps.source == PATTERN:
        return ()
    return [leak for leak in leaks if not leak.is_stored_data]


def _is_kept_by_program(view: Attribution, leaks: Sequence[RecordedLeak]) -> bool:
    """Whether what grows was computed in a program without backward passes: these would free it, and what was
    stored as data may be a buffer that fills.
    """
    largest = max(leaks, key=lambda leak: leak.bytes, default=None)
    is_training = view.training != Training.ABSENT
    return largest is not None and not is_training and not largest.is_stored_data
