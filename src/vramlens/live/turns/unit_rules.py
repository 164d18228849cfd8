"""What is left of leaks where no optimizer ends a step: of what a loop gathers, and where a step is a
stretch of time, in which may be several turns, or none.
"""

from __future__ import annotations

from dataclasses import replace

from vramlens.ground.verdict import Verdict
from vramlens.live.leaks.leak_report import LeakReport, LiveLeak
from vramlens.live.turns.loop_results import without_results
from vramlens.units import counted

_FEWEST, _MANY = 5, 16
"""Stretches that left something: a table of twelve kinds is built in four of them, and what is alive of a
population that lives on came in five to eight of 20.
"""
_SHARE = 0.5
"""Of the stretches between: a leak of each turn fills nearly all."""


def judged_without_optimizer(report: LeakReport, *, is_of_time: bool) -> LeakReport:
    """The report, with what a loop gathers for a use after it, and what few stretches of time left,
    as possible leaks only.

    Args:
        is_of_time: whether a step is a stretch of time.
    """
    report = without_results(report)
    if not is_of_time:
        return report
    return replace(report, leaks=tuple(map(_judged, report.leaks)))


def _judged(leak: LiveLeak) -> LiveLeak:
    if not leak.sure or leak.first_step is None or leak.last_step is None:
        return leak
    span = leak.last_step - leak.first_step + 1
    if leak.steps >= min(_MANY, max(_FEWEST, _SHARE * span)):
        return leak
    of_span = f" of {counted(span, 'step')}" if leak.steps < span else " steps"
    reason = f"only {leak.steps:,}{of_span} left something behind"
    return replace(leak, verdict=Verdict.POSSIBLE, reason=leak.reason_and(reason))
