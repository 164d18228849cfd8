"""Updates: a budget rewritten from a run's own figures."""

from __future__ import annotations

from dataclasses import dataclass

from vramlens.analyses.budget.budget_file import (
    COUNT,
    SIZE,
    Budget,
    Limit,
    new_budget,
    update_budget,
)
from vramlens.analyses.budget.budget_values import DIED, FAILURES, measured
from vramlens.analyses.budget.limit_result import shown
from vramlens.analyses.compare.compared_run import HISTORY_SHARE, Run
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
    """

    text: str
    changes: tuple[tuple[str, str | None, str], ...]
    untold: tuple[tuple[str, str], ...]


def update(run: Run, budget: Budget | None) -> Update:
    """A budget with the run's own figures as limits; a first one where there is none yet.

    Raises:
        InputError: a limit stands where it cannot be edited; or the run died of out of memory and
            no limit allows it.
    """
    limits = {} if budget is None else {limit.path: limit for limit in budget.limits}
    _refuse_failed(run, limits)
    kinds = FIRST_LIMITS if budget is None else [(path, limits[path].kind) for path in limits]
    values: _Values = {}
    untold = []
    for path, kind in kinds:
        measurement = measured(run, path)
        scope = limits[path].scope if path in limits else path[0]
        if measurement.value is None:
            untold.append((scope, measurement.why))
        elif measurement.is_lower_bound:
            untold.append((scope, f"{shown(kind, measurement.value)} is {measurement.why}"))
        else:
            room = 1 + HISTORY_SHARE if path in _BY_HISTORY else 1
            values[path] = (kind, measurement.value * room)
    at_peak = {place: line.bytes for place, line in run.lines.items() if line.bytes}
    text = update_budget(budget, values, at_peak) if budget else new_budget(values, at_peak)
    return Update(text, _changes(values, limits), tuple(untold))


def _refuse_failed(run: Run, limits: dict[tuple[str, ...], Limit]) -> None:
    """Raises InputError where the run died of out of memory and no limit allows it."""
    failures = measured(run, FAILURES)
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
        elif limits[path].value != value:
            before = shown(kind, limits[path].value)
            changes.append((limits[path].scope, before, shown(kind, value)))
    return tuple(changes)
