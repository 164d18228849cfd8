"""Findings that came or went between two runs: what ``explain`` claims of one and not of the
other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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

_NEARLY = 0.98
_DURING_ONE_OPERATION = frozenset({"operator_buffers"})
"""Findings about memory that is gone again at once: at the other run's peak it need not be there."""


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
    """The problems of one run that the other does not have; one that is merely a larger share of a smaller
    peak is not new.
    """
    old, new = problems_of(before), problems_of(after)
    unmatched = list(new)
    went = []
    for problem in old:
        same_problem = _same_problem(problem, unmatched, alignment.after)
        if same_problem is None:
            went.append(problem)
        else:
            unmatched.remove(same_problem)
    back = {new_place: old_place for old_place, new_place in alignment.after.items()}
    return FindingChanges(
        came=tuple(it for it in unmatched if not _is_as_large_in(before, it, after, back)),
        went=tuple(it for it in went if not _is_as_large_in(after, it, before, alignment.after)),
    )


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


def _is_as_large_in(other: Run, problem: Finding, run: Run, places: Mapping[Place, Place]) -> bool:
    """Whether a problem of one run was there in the other, with as many bytes, and only mattered less.

    Args:
        other: the run that does not have the problem.
        run: the run that has it.
        places: by line of ``run``, its place in ``other``.
    """
    extent = problem.extent
    if extent is None or not problem.bytes:
        return False
    if not len(extent.rows):
        if not len(extent.holes):
            return False
        return _most_unused(other) >= _NEARLY * problem.bytes
    sizes = run.view.device.allocations.requested_bytes[extent.rows]
    frames = np.unique(run.view.phases.frame[extent.rows])
    lines = {place for frame in frames.tolist() if (place := run.view.place(frame)) is not None}
    lines_before = {places[line] for line in lines if line in places}
    is_brief = problem.id in _DURING_ONE_OPERATION
    is_inferred = is_brief and bool(run.view.phases.inferred[extent.rows].any())
    rows_before = _requests(other, lines_before, sizes, is_anywhere=is_inferred)
    if not len(rows_before):
        return False
    if is_brief:
        return other.view.device.allocations.fullest(rows_before)[1] >= _NEARLY * problem.bytes
    rows = _requests(run, lines, sizes)
    return _alive_bytes(other, rows_before, other.view.device.requested.peak_event) >= (
        _NEARLY * _alive_bytes(run, rows, extent.event)
    )


def _most_unused(run: Run) -> int:
    """The most by which what a run had reserved by any moment was more than it had needed until then."""
    device = run.view.device
    reserved = np.maximum.accumulate(device.reserved_curve)
    needed = np.maximum.accumulate(device.requested_curve)
    return int((reserved - needed).max(initial=0))


def _requests(
    run: Run, lines: set[Place], sizes: NDArray[np.int64], *, is_anywhere: bool = False
) -> NDArray[np.int64]:
    """The rows of what some lines ask for in some sizes.

    Args:
        is_anywhere: whether those of a backward pass count at any line: which line they are of is inferred,
            in one run and maybe not in the other.
    """
    view = run.view
    asked = np.flatnonzero(np.isin(view.device.allocations.requested_bytes, np.unique(sizes)))
    frames = view.phases.frame[asked]
    of_lines = [frame for frame in np.unique(frames).tolist() if view.place(frame) in lines]
    is_of_lines = np.isin(frames, of_lines)
    if is_anywhere:
        is_of_lines |= view.phases.span[asked] >= 0
    return asked[is_of_lines]


def _alive_bytes(run: Run, rows: NDArray[np.int64], event: int) -> int:
    allocations = run.view.device.allocations
    is_alive = (allocations.born[rows] <= event) & (allocations.died[rows] > event)
    return int(allocations.requested_bytes[rows[is_alive]].sum())
