"""Budgets: whether a run stays within its limits, and what broke those that it does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vramlens.analyses.budget.budget_file import (
    COUNT,
    SHARE,
    SIZE,
    Budget,
    Limit,
    new_budget,
    update_budget,
)
from vramlens.analyses.budget.budget_values import (
    DIED,
    FAILURES,
    ended_by_failure,
    is_line,
    measured,
    module_pattern,
)
from vramlens.analyses.compare.alignment import align
from vramlens.analyses.compare.diff import Diff, LineChange, diff_runs
from vramlens.analyses.compare.diff_findings import line_words, signed_size
from vramlens.analyses.compare.run import HISTORY_SHARE, CodeLine, Run
from vramlens.analyses.finding import Finding, Place
from vramlens.errors import InputError
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_CULPRITS = 3
_NO_FAILURE = Limit(FAILURES, COUNT, 0, None)


@dataclass(frozen=True, slots=True)
class Rise:
    """A line that holds more at the peak than it did, or simply much where nothing is known of
    before.
    """

    place: Place
    bytes: int
    words: str


@dataclass(frozen=True, slots=True)
class Result:
    """One limit, held against the run.

    Attributes:
        limit: as the file says it.
        value: what the run had; None where the recording cannot tell.
        passed: None where the recording cannot tell.
        why: why it cannot tell, or what is to be known about the value; "" else.
    """

    limit: Limit
    value: float | None
    passed: bool | None
    why: str = ""

    @property
    def words(self) -> str:
        """The result as a phrase: ``20.31 GiB, 319.00 MiB over its 20.00 GiB``."""
        limit = shown(self.limit.kind, self.limit.value)
        if self.value is None:
            return f"cannot be told: {self.why}"
        value = shown(self.limit.kind, self.value)
        if self.passed:
            return f"{value} of {limit}"
        if self.limit.kind == SIZE:
            return f"{value}, {format_size(self.value - self.limit.value)} over its {limit}"
        return f"{value}, over its {limit}"


@dataclass(frozen=True, slots=True)
class Check:
    """A run held against a budget.

    Attributes:
        source, budget: the files' names.
        passed: whether every limit holds; one that cannot be told does not.
        results: one a limit, in the file's order.
        findings: one a broken limit, with what broke it.
    """

    source: str
    budget: str
    passed: bool
    results: tuple[Result, ...]
    findings: tuple[Finding, ...]


def shown(kind: str, value: float) -> str:
    """A limit's value as people say it."""
    if kind == SIZE:
        return format_size(value)
    return f"{value * 100:.3g} %" if kind == SHARE else f"{int(value):,}"


def check_run(run: Run, budget: Budget, baseline: Run | None = None) -> Check:
    """Holds a run against a budget. A run that died of out of memory breaks every budget that does
    not allow that.

    Args:
        baseline: a run that kept it: tells which lines rose. Without it, what the budget recorded
            when it was last updated does; without that, the lines that hold most are named.
    """
    limits = budget.limits
    if ended_by_failure(run) and all(limit.path != FAILURES for limit in limits):
        limits = (*limits, _NO_FAILURE)
    results = tuple(_result(run, limit, budget.tolerance) for limit in limits)
    broken = [result for result in results if not result.passed]
    diff = diff_runs([baseline], [run]) if baseline is not None and broken else None
    findings = _findings(run, broken, budget, diff)
    return Check(run.source, budget.source, not broken, results, tuple(findings))


def _result(run: Run, limit: Limit, tolerance: float) -> Result:
    measurement = measured(run, limit.path)
    value, why = measurement.value, measurement.why
    allowed = limit.value * (1 + tolerance) if limit.kind == SIZE else limit.value
    at_most = run.growth_at_most if limit.path == ("growth_per_step",) else None
    if (
        value is None and at_most is not None and at_most <= allowed
    ):  # however more steps would judge it
        return Result(limit, at_most, True, f"at most; {why}")
    if value is None:
        return Result(limit, None, None, why)
    holds = value <= allowed + (1e-9 if limit.kind == SHARE else 0)
    if holds and measurement.is_lower_bound:
        return Result(limit, None, None, f"{shown(limit.kind, value)} is {why}")
    return Result(limit, value, holds, why)


def _findings(run: Run, broken: list[Result], budget: Budget, diff: Diff | None) -> list[Finding]:
    """One claim a broken limit; peaks that rose together are one."""
    found = []
    peaks = [one for one in broken if one.passed is False and one.limit.path[0] in _PEAKS]
    if peaks:
        worst = peaks[0]
        rises = _rises(run, budget, diff, None)
        title = f"{worst.limit.scope} is {worst.words}"
        if len(peaks) > 1:
            title += f"; so is {', '.join(one.limit.scope for one in peaks[1:])}"
        fix = (
            f"undo the rise at {rises[0].place}"
            if rises and (diff is not None or budget.recorded)
            else None
        )
        found.append(
            _over(
                worst,
                title,
                rises,
                fix or f"vramlens explain {run.source} says what would make it smaller",
            )
        )
    for one in broken:
        if one in peaks:
            continue
        title = (
            f"{one.limit.scope} is {one.words}"
            if one.value is not None
            else f"{one.limit.scope} {one.words}"
        )
        if one.passed is None:
            found.append(
                Finding(
                    "cannot_tell",
                    Verdict.PROVEN,
                    title,
                    fix="record what it needs, or take the limit out",
                )
            )
        elif one.limit.path[0] == "growth_per_step":
            grows = [
                Rise(
                    leak.place,
                    leak.bytes_per_step,
                    f"{format_size(leak.bytes_per_step)} a step: {leak.place}",
                )
                for leak in run.leaks[:_CULPRITS]
                if leak.place is not None
            ]
            found.append(_over(one, title, grows, run.leaks[0].fix if run.leaks else None))
        elif one.limit.path[0] in ("module", "line", "category", "phase"):
            found.append(_over(one, title, _rises(run, budget, diff, one.limit), None))
        elif one.limit.path[0] == "fragmentation":
            pins = (
                run.explanation.fragmentation.pinned_by
                if run.explanation.fragmentation is not None
                else ()
            )
            apart = [
                Rise(
                    pin.place,
                    pin.held_bytes,
                    f"{pin.place} keeps {format_size(pin.held_bytes)} apart",
                )
                for pin in pins[:_CULPRITS]
                if pin.place is not None
            ]
            found.append(
                _over(
                    one,
                    title,
                    apart,
                    f"vramlens tune {run.source} finds settings that leave fewer holes",
                )
            )
        else:
            title += f": {one.why}" if one.why == DIED else ""
            found.append(
                _over(one, title, [], f"vramlens explain {run.source} says what failed, and why")
            )
    return found


_PEAKS = ("peak_allocated", "peak_requested", "peak_active", "peak_reserved")


def _over(result: Result, title: str, rises: list[Rise], fix: str | None) -> Finding:
    assert result.value is not None
    return Finding(
        "over_budget",
        Verdict.PROVEN,
        title,
        int(result.value - result.limit.value) if result.limit.kind == SIZE else None,
        rises[0].place if rises else None,
        evidence=tuple(rise.words for rise in rises),
        fix=fix,
    )


def _rises(run: Run, budget: Budget, diff: Diff | None, limit: Limit | None) -> list[Rise]:
    """The lines that rose, the most first; without anything to compare with, those that hold
    most.
    """

    def inside(place: Place) -> bool:
        if limit is None or limit.path[0] == "phase":
            return True
        held = run.lines.get(place)
        if limit.path[0] == "line":
            return is_line(place, limit.path[1])
        if held is None:
            return False
        if limit.path[0] == "category":
            return held.category == limit.path[1]
        pattern = module_pattern(limit.path[1])
        return any(pattern.match(path) for path in held.modules)

    if diff is not None:
        risen = [line for line in diff.by_line if line.change_bytes > 0 and inside(line.place)]
        return [
            Rise(
                line.place,
                line.change_bytes,
                f"{signed_size(line.change_bytes)}: {line_words(line)}{_asked_at(line)}",
            )
            for line in risen[:_CULPRITS]
        ]
    if budget.recorded:
        risen_lines = [
            (place, rise)
            for place, rise in _since(budget.recorded, run).items()
            if rise > 0 and inside(place)
        ]
        ordered = sorted(risen_lines, key=lambda item: (-item[1], str(item[0])))
        return [
            Rise(
                place,
                rise,
                f"{signed_size(rise)} since the budget was updated: {place}{_through(run, place)}",
            )
            for place, rise in ordered[:_CULPRITS]
        ]
    most = sorted(
        (held for held in run.lines.values() if inside(held.place)), key=lambda held: -held.bytes
    )
    return [
        Rise(
            held.place,
            held.bytes,
            f"{format_size(held.bytes)} at the peak: {held.place}{_through(run, held.place)}",
        )
        for held in most[:_CULPRITS]
        if held.bytes
    ]


def _asked_at(line: LineChange) -> str:
    return f", asked for at {line.inner}" if line.inner is not None else ""


def _through(run: Run, place: Place) -> str:
    """The module that most of a line's bytes belong to."""
    held = run.lines[place]
    path, size = max(held.modules.items(), key=lambda item: item[1], default=("", 0))
    return f" ({path})" if path and size * 2 > held.bytes else ""


def _since(recorded: Mapping[Place, int], run: Run) -> dict[Place, int]:
    """By line of the run, how much more it holds at the peak than the budget recorded."""
    now = {place: held.bytes for place, held in run.lines.items() if held.bytes}
    # What a line held stands for what it asked for: of two that may be the same, the one with the
    #     same bytes is.
    sides = [
        [CodeLine(place, frozenset(), frozenset((size,))) for place, size in held.items()]
        for held in (recorded, now)
    ]
    old = {new: recorded[place] for place, new in align(*sides).after.items()}
    return {place: size - old.get(place, 0) for place, size in now.items()}


FIRST_LIMITS = (
    (("peak_allocated",), SIZE),
    (("peak_requested",), SIZE),
    (("growth_per_step",), SIZE),
    (("alloc_retries",), COUNT),
)
"""What a first budget limits: what is the same in every run of one program."""


_BY_HISTORY = (("peak_allocated",), ("peak_active",), ("peak_reserved",))
"""What is not the same in every run of one program: an update leaves it some room."""


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
    failed = measured(run, FAILURES)
    allowed = (
        max((limit.value for limit in budget.limits if limit.path == FAILURES), default=0)
        if budget
        else 0
    )
    if failed.why == DIED and failed.value is not None and failed.value > allowed:
        allow = f"out_of_memory = {failed.value} in the budget would allow it"
        raise InputError(
            f"{run.source}: ran out of memory and ended: no run to take limits from ({allow})"
        )
    limits = (
        FIRST_LIMITS
        if budget is None
        else tuple((limit.path, limit.kind) for limit in budget.limits)
    )
    old = {limit.path: limit for limit in budget.limits} if budget is not None else {}
    values, untold = {}, []
    for path, kind in limits:
        measurement = measured(run, path)
        scope = old[path].scope if path in old else path[0]
        if measurement.value is None:
            untold.append((scope, measurement.why))
        elif measurement.is_lower_bound:
            untold.append((scope, f"{shown(kind, measurement.value)} is {measurement.why}"))
        else:
            room = 1 + HISTORY_SHARE if path in _BY_HISTORY else 1
            values[path] = (kind, measurement.value * room)
    held = {place: line.bytes for place, line in run.lines.items() if line.bytes}
    text = new_budget(values, held) if budget is None else update_budget(budget, values, held)
    changes = tuple(
        (
            old[path].scope if path in old else path[0],
            shown(kind, old[path].value) if path in old else None,
            shown(kind, value),
        )
        for path, (kind, value) in values.items()
        if path not in old or old[path].value != value
    )
    return Update(text, changes, tuple(untold))
