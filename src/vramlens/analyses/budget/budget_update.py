"""Updates: a budget rewritten from a run's own figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vramlens.analyses.budget.broken_limits import shown
from vramlens.analyses.budget.budget_file import (
    CARD,
    COUNT,
    SIZE,
    Budget,
    Limit,
    new_budget,
    update_budget,
    value_as_written,
)
from vramlens.analyses.budget.budget_values import DIED, FAILURES, Measurement, measured
from vramlens.analyses.compare.compared_run import HISTORY_SHARE, Run
from vramlens.analyses.compare.file_alignment import CELL, file_name
from vramlens.analyses.finding import Place
from vramlens.errors import InputError

FIRST_LIMITS = (
    (("peak_allocated",), SIZE),
    (("peak_requested",), SIZE),
    (("growth_per_step",), SIZE),
    (("alloc_retries",), COUNT),
)
"""What a first budget limits: what is the same in every run of one program."""
_BY_HISTORY = (("peak_allocated",), ("peak_active",), ("peak_reserved",))
"""What is not the same in every run of one program: an update leaves it some room."""

_Values = dict[tuple[str, ...], tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Update:
    """A budget rewritten from a run.

    Attributes:
        text: the whole file.
        changes: the limits, each with its value before (None: new) and now.
        untold: limits that the run cannot tell, which stay as they were, with the reason.
        notes: of a job, what is odd about its files, one sentence each.
    """

    text: str
    changes: tuple[tuple[str, str | None, str], ...]
    untold: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The figures of a run that an update needs.

    Attributes:
        source: the recording.
        measurements: by limit.
        lines: by line, what it held at the peak.
        peak_bytes: the requested peak.
    """

    source: str
    measurements: Mapping[tuple[str, ...], Measurement]
    lines: Mapping[Place, int]
    peak_bytes: int


def update(run: Run, budget: Budget | None) -> Update:
    """A budget with the run's own figures as limits; a first one where there is none yet.

    Raises:
        InputError: a limit stands where it cannot be edited; or the run died of out of memory and
            no limit allows it.
    """
    return update_from([figures_of(run, budget)], budget)


def figures_of(run: Run, budget: Budget | None) -> RunFigures:
    """The figures of a run that become limits."""
    paths = [path for path, _kind in _kinds(budget)]
    return RunFigures(
        source=run.source,
        measurements={path: measured(run, path) for path in (*paths, FAILURES)},
        lines={place: line.bytes for place, line in run.lines.items() if line.bytes},
        peak_bytes=run.requested_bytes,
    )


def update_from(runs: Sequence[RunFigures], budget: Budget | None) -> Update:
    """A budget that every one of some runs keeps: the ranks of a job.

    Raises:
        InputError: as ``update``.
    """
    limits = {} if budget is None else {limit.path: limit for limit in budget.limits}
    for figures in runs:
        _refuse_failed(figures, limits)
    values: _Values = {}
    untold = []
    for path, kind in _kinds(budget):
        measurement = _highest([figures.measurements[path] for figures in runs])
        scope = limits[path].scope if path in limits else path[0]
        why = _why_untold(kind, measurement)
        if measurement.value is None or why:
            untold.append((scope, why))
        else:
            room = 1 + HISTORY_SHARE if path in _BY_HISTORY else 1
            values[path] = (kind, measurement.value * room)
    at_peak = without_folders(max(runs, key=lambda figures: figures.peak_bytes).lines)
    text = update_budget(budget, values, at_peak) if budget else new_budget(values, at_peak)
    return Update(text, _changes(values, limits), tuple(untold))


def without_folders(line_sizes: Mapping[Place, int]) -> dict[Place, int]:
    """The lines, whose files have as many folders as tell them apart; a notebook's cell has all.

    A budget is committed: folders of this machine do not belong there, and a check pairs files by
    the ends of their paths (``compare.file_alignment``).
    """
    files = {place.file for place in line_sizes}
    parts_by_file = {
        file: [file] if file_name(file) == CELL else re.split(r"[/\\]", file) for file in files
    }
    ends = Counter(
        tuple(parts[-length:])
        for parts in parts_by_file.values()
        for length in range(1, len(parts) + 1)
    )
    names = {}
    for file, parts in parts_by_file.items():
        shorter = (parts[-length:] for length in range(1, len(parts)))
        names[file] = "/".join(next((end for end in shorter if ends[tuple(end)] == 1), [file]))
    return {replace(place, file=names[place.file]): size for place, size in line_sizes.items()}


def _why_untold(kind: str, measurement: Measurement) -> str:
    """Why a run sets no limit; "" where it does."""
    if measurement.value is None:
        return measurement.why
    if measurement.is_lower_bound:
        return f"{shown(kind, measurement.value)} is {measurement.why}"
    return ""


def _kinds(budget: Budget | None) -> Sequence[tuple[tuple[str, ...], str]]:
    """The limits to set, each with its kind."""
    if budget is None:
        return FIRST_LIMITS
    # What a card has is nothing that a run could tell.
    return [(limit.path, limit.kind) for limit in budget.limits if limit.path != CARD]


def _highest(measurements: Sequence[Measurement]) -> Measurement:
    """The highest of several runs; one that cannot tell leaves it unknown."""
    for measurement in measurements:
        if measurement.value is None or measurement.is_lower_bound:
            return measurement
    return max(measurements, key=lambda measurement: measurement.value or 0)


def _refuse_failed(run: RunFigures, limits: dict[tuple[str, ...], Limit]) -> None:
    """Raises InputError where the run died of out of memory and no limit allows it."""
    failures = run.measurements[FAILURES]
    allowed = limits[FAILURES].value if FAILURES in limits else 0
    if failures.why == DIED and failures.value is not None and failures.value > allowed:
        allow = f"out_of_memory = {failures.value} in the budget would allow it"
        raise InputError(
            f"{run.source}: the run ended with an out-of-memory error, so no limits were taken "
            f"from it ({allow})"
        )


def _changes(
    values: _Values, limits: dict[tuple[str, ...], Limit]
) -> tuple[tuple[str, str | None, str], ...]:
    """The limits whose value is another now, each with its value before and now."""
    changes: list[tuple[str, str | None, str]] = []
    for path, (kind, value) in values.items():
        if path not in limits:
            changes.append((path[0], None, shown(kind, value)))
        elif limits[path].value != value_as_written(kind, value):
            before = shown(kind, limits[path].value)
            changes.append((limits[path].scope, before, shown(kind, value)))
    return tuple(changes)
