"""Budgets: whether a run stays within its limits."""

from __future__ import annotations

from dataclasses import dataclass

from vramlens.analyses.budget.broken_limits import BrokenLimits, Result, findings_of, shown
from vramlens.analyses.budget.budget_file import CARD, COUNT, SHARE, SIZE, Budget, Limit
from vramlens.analyses.budget.budget_values import FAILURES, ended_by_failure, measured
from vramlens.analyses.budget.predicted_script import PredictedScript
from vramlens.analyses.compare.compared_run import Run
from vramlens.analyses.compare.run_diff import diff_runs
from vramlens.analyses.finding import Finding
from vramlens.ground.printed_answer import PrintedAnswer

_NO_FAILURE = Limit(FAILURES, COUNT, 0, None)
_ROUNDING = 1e-9
"""How far a share may be above its limit: it is a quotient."""


@dataclass(frozen=True, slots=True, repr=False)
class Check(PrintedAnswer):
    """A run held against a budget.

    Attributes:
        source, budget: the files' names; of a job its folder.
        passed: whether every limit holds; one that cannot be told does not.
        results: one a limit, in the file's order.
        findings: one a broken limit, with what broke it.
        ranks: of a job, its ranks; () for one recording.
        worst_recording: of a job, the recording of the rank to look at.
        notes: of a job, what is odd about its files, one sentence each.
        predicted: of a prediction, the script; its recording is gone.
    """

    source: str
    budget: str
    passed: bool
    results: tuple[Result, ...]
    findings: tuple[Finding, ...]
    ranks: tuple[int, ...] = ()
    worst_recording: str | None = None
    notes: tuple[str, ...] = ()
    predicted: PredictedScript | None = None


def check_run(
    run: Run,
    budget: Budget,
    baseline: Run | None = None,
    predicted: PredictedScript | None = None,
) -> Check:
    """Holds a run against a budget. A run that died of out of memory breaks every budget that does
    not allow that.

    Args:
        baseline: a run that kept it: tells which lines rose. Without it, what the budget recorded
            when it was last updated does; without that, the lines that hold most are named.
        predicted: the script, if the run was predicted: the answer names it, not the recording.
    """
    limits = budget.limits
    if ended_by_failure(run) and all(limit.path != FAILURES for limit in limits):
        limits = (*limits, _NO_FAILURE)
    results = tuple(_result(run, limit, budget.tolerance, predicted) for limit in limits)
    broken = [result for result in results if not result.passed]
    diff = diff_runs([baseline], [run]) if baseline is not None and broken else None
    return Check(
        source=run.source if predicted is None else predicted.script,
        budget=budget.source,
        passed=not broken,
        results=results,
        predicted=predicted,
        findings=tuple(
            findings_of(
                BrokenLimits(run=run, results=broken, budget=budget, diff=diff, predicted=predicted)
            )
        ),
    )


def _result(run: Run, limit: Limit, tolerance: float, predicted: PredictedScript | None) -> Result:
    if limit.path == CARD and predicted is not None:
        return _card_result(limit, predicted)
    measurement = measured(run, limit.path)
    value, why = measurement.value, measurement.why
    allowed = limit.value * (1 + tolerance) if limit.kind == SIZE else limit.value
    if value is None:
        at_most = run.growth_at_most if limit.path == ("growth_per_step",) else None
        if at_most is not None and at_most <= allowed:  # however more steps would judge it
            return Result(limit, at_most, True, f"at most; {why}")
        return Result(limit, None, None, why)
    holds = value <= allowed + (_ROUNDING if limit.kind == SHARE else 0)
    if holds and measurement.is_lower_bound:
        return Result(limit, None, None, f"{shown(limit.kind, value)} is {why}")
    return Result(limit, value, holds, why)


def _card_result(limit: Limit, predicted: PredictedScript) -> Result:
    """Whether a card is sure to be enough: "may fit" is not."""
    fits = predicted.cards.get(int(limit.value))
    if fits is None:
        return Result(limit, None, None, f"it may fit: {predicted.range_text}")
    # On a card that is full at times PyTorch frees its cache, and reserves no more than there is.
    most = min(predicted.reserved_bytes, int(limit.value)) if fits else predicted.reserved_bytes
    return Result(limit, most, fits)
