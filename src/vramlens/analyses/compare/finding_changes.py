"""Findings that came or went between two runs: what ``explain`` claims of one and not of the
other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vramlens.analyses.compare.alignment import Alignment
from vramlens.analyses.compare.compared_run import Run
from vramlens.analyses.finding import Finding, Place
from vramlens.ground.verdict import Verdict

_DESCRIPTIONS = frozenset({"activations", "largest_line", "optimizer_state"})
"""Findings that say what the memory is for: no problem that a change could bring or mend."""
_TOLD_ELSEWHERE = frozenset(
    {"expandable_segments", "fragmented_request", "leak", "process_limit", "sampled_growth"}
)
"""Findings about failures and growth, which a diff tells by themselves."""
_AT_LARGEST_LINE = frozenset({"operator_buffers"})
"""Findings about the whole run: their line is only the largest of many."""
_LEAST_SHARE = 0.01
"""A finding that came within so little of the peak may have been there below its threshold."""


@dataclass(frozen=True, slots=True)
class FindingChanges:
    """The findings of two runs that are not in both, the most important first.

    Attributes:
        came: in the run after only.
        went: in the run before only.
    """

    came: tuple[Finding, ...]
    went: tuple[Finding, ...]


def finding_changes(before: Run, after: Run, alignment: Alignment) -> FindingChanges:
    """The problems of one run that the other does not have."""
    old, new = problems_of(before), problems_of(after)
    unmatched = list(new)
    went = []
    for problem in old:
        same_problem = _same_problem(problem, unmatched, alignment.after)
        if same_problem is None:
            went.append(problem)
        else:
            unmatched.remove(same_problem)
    return FindingChanges(came=tuple(unmatched), went=tuple(went))


def problems_of(run: Run) -> list[Finding]:
    """The findings of a run that a change of the program could have brought."""
    least_bytes = _LEAST_SHARE * run.requested_bytes
    return [
        finding
        for finding in run.explanation.findings
        if finding.id not in _DESCRIPTIONS | _TOLD_ELSEWHERE
        and finding.verdict != Verdict.NOT_A_PROBLEM
        and (finding.bytes is None or finding.bytes >= least_bytes)
    ]


def _same_problem(
    problem: Finding, candidates: Sequence[Finding], places: Mapping[Place, Place]
) -> Finding | None:
    """The candidate that makes the same claim of the same line; None where none does."""
    for candidate in candidates:
        if candidate.id != problem.id:
            continue
        if problem.id in _AT_LARGEST_LINE or problem.place is None or candidate.place is None:
            return candidate
        # A line that is gone may be the other one, rewritten.
        if places.get(problem.place, candidate.place) == candidate.place:
            return candidate
    return None
