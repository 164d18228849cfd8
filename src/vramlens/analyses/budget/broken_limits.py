"""Results: limits held against a run; of each broken one a finding, with the lines that broke it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from vramlens.analyses.budget.budget_file import CARD, SHARE, SIZE, Budget, Limit
from vramlens.analyses.budget.budget_values import DIED, ended_by_failure, is_line, module_pattern
from vramlens.analyses.budget.predicted_script import PredictedScript
from vramlens.analyses.compare.alignment import align
from vramlens.analyses.compare.compared_run import CodeLine, HeldLine, Run
from vramlens.analyses.compare.diff_answer import Diff, LineChange
from vramlens.analyses.compare.diff_findings import (
    different_work,
    line_words,
    problem_words,
    signed_size,
)
from vramlens.analyses.compare.finding_changes import problems_of
from vramlens.analyses.finding import Finding, Place
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_CULPRITS = 3
_MOST_OF = 0.5
_ABOUT_RESERVED = frozenset(
    {
        "expandable_segments",
        "private_pools",
        "settings_help",
        "settings_may_help",
        "settings_save",
        "stranded_streams",
        "unused_reserve",
    }
)
"""Findings about memory that is reserved and not allocated."""
_PEAKS = ("peak_allocated", "peak_requested", "peak_active", "peak_reserved")


@dataclass(frozen=True, slots=True)
class Result:
    """One limit, held against the run.

    Attributes:
        limit: as the file says it.
        value: what the run had; None where the recording cannot tell.
        passed: None where the recording cannot tell.
        why: why it cannot tell, or what is to be known about the value; "" else.
        rank: of a job, the rank that keeps the limit least; None for one recording.
    """

    limit: Limit
    value: float | None
    passed: bool | None
    why: str = ""
    rank: int | None = None

    @property
    def words(self) -> str:
        """The result as a phrase: ``20.31 GiB, 319.00 MiB over its limit of 20.00 GiB``."""
        limit = shown(self.limit.kind, self.limit.value)
        if self.value is None:
            return f"unknown: {self.why}"
        value = shown(self.limit.kind, self.value)
        if self.passed:
            return f"{value} of {limit}"
        if self.limit.kind == SIZE:
            return (
                f"{value}, {format_size(self.value - self.limit.value)} over its limit of {limit}"
            )
        return f"{value}, over its limit of {limit}"


def shown(kind: str, value: float) -> str:
    """A limit's value as people say it."""
    if kind == SIZE:
        return format_size(value)
    return f"{value * 100:.3g}%" if kind == SHARE else f"{int(value):,}"


@dataclass(frozen=True, slots=True)
class Rise:
    """A line that holds more at the peak than it did, or simply much where nothing is known of
    before.
    """

    place: Place
    bytes: int
    words: str


@dataclass(frozen=True, eq=False)
class BrokenLimits:
    """A run and the limits that it broke, or that cannot be told.

    Attributes:
        run, budget: what was held against what.
        results: one a limit, in the file's order.
        diff: against a run that kept the budget; None without one.
        predicted: the script, if the run was predicted.
    """

    run: Run
    results: Sequence[Result]
    budget: Budget
    diff: Diff | None
    predicted: PredictedScript | None = None


def findings_of(broken: BrokenLimits) -> Iterator[Finding]:
    """Yields one claim a broken limit; peaks that rose together, and limits that are unknown for
    one reason, are one.
    """
    deaths = [result for result in broken.results if result.passed is False and result.why == DIED]
    for result in deaths:  # first: retries and peaks above a limit led to it
        yield _about_failures(broken, result)
    peaks = [
        result
        for result in broken.results
        if result.passed is False and result.limit.path[0] in _PEAKS
    ]
    if peaks:
        yield _about_peaks(broken, peaks)
    cards = [result for result in broken.results if _is_card(broken, result)]
    for result in broken.results:
        if result in cards:
            yield _about_card(broken, result)
        elif result not in [*deaths, *peaks] and result.passed is not None:
            yield _BY_SUBJECT.get(result.limit.path[0], _about_failures)(broken, result)
    other_results = [result for result in broken.results if result not in cards]
    for results in _unknown_by_reason(other_results):
        yield Finding(
            id="cannot_tell",
            verdict=Verdict.PROVEN,
            title=title_of(results),
            fix=_to_know(broken.run, results),
            limits=tuple(result.limit.scope for result in results),
        )


def _to_know(run: Run, results: Sequence[Result]) -> str:
    """What makes limits known that a recording does not tell."""
    is_growth = all(result.limit.path == ("growth_per_step",) for result in results)
    if is_growth and ended_by_failure(run):
        return "run it with --leaks, which judges what is kept before memory runs out"
    return "make a recording that shows it; if no recording can, remove the limit"


def _unknown_by_reason(results: Sequence[Result]) -> Iterable[list[Result]]:
    """The results that are unknown, those with one reason together, whatever their bounds are."""
    by_reason: dict[str, list[Result]] = {}
    for result in results:
        if result.passed is None:
            reason = result.why.partition(" is a lower bound")
            by_reason.setdefault(reason[2] or reason[0], []).append(result)
    return by_reason.values()


def title_of(results: Sequence[Result]) -> str:
    """What is claimed of limits that are broken together: the first with its numbers."""
    first = results[0]
    title = f"{first.limit.scope} is {first.words}"
    if len(results) > 1:
        other_scopes = ", ".join(result.limit.scope for result in results[1:])
        title += f"; also {'unknown' if first.passed is None else 'over'}: {other_scopes}"
    return title


def bytes_over(result: Result) -> int | None:
    """How far a size is over its limit; None for what is not a size, or not known."""
    if result.value is None or result.limit.kind != SIZE:
        return None
    return int(result.value - result.limit.value)


def _about_peaks(broken: BrokenLimits, peaks: Sequence[Result]) -> Finding:
    rises = _rises(broken, None)
    problem = _problem_behind(broken, peaks[0])
    fix = f"run {_explaining(broken)} to see what would make it smaller"
    if problem is not None and problem.fix is not None:
        fix = problem.fix
    elif rises and (broken.diff is not None or broken.budget.recorded):
        fix = f"undo the increase at {rises[0].place}"
    finding = _over(peaks[0], title_of(peaks), rises, fix)
    return replace(
        finding,
        evidence=(*_reasons(broken, problem), *finding.evidence),
        limits=tuple(result.limit.scope for result in peaks),
    )


def _problem_behind(broken: BrokenLimits, result: Result) -> Finding | None:
    """A problem of the run that explains most of what is over the limit; None where none does.

    With a baseline it has to be new.
    """
    problems = problems_of(broken.run) if broken.diff is None else broken.diff.came
    if result.limit.path[0] != "peak_reserved":  # settings change only what is reserved
        problems = [problem for problem in problems if problem.id not in _ABOUT_RESERVED]
    excess_bytes = (result.value or 0) - result.limit.value
    telling = [
        problem
        for problem in problems
        if problem.bytes is not None and problem.bytes >= _MOST_OF * excess_bytes
    ]
    # Nearly every run has some buffers: any other problem says more.
    return min(telling, key=lambda problem: problem.id == "operator_buffers", default=None)


def _reasons(broken: BrokenLimits, problem: Finding | None) -> Iterator[str]:
    """Yields what explains a higher peak better than its lines do."""
    if broken.diff is not None and broken.diff.workload:
        yield different_work(broken.diff).rstrip(".")
    if problem is not None:
        since = "New since the baseline" if broken.diff is not None else "In this run"
        yield f"{since}: {problem_words(problem)}"


def _is_card(broken: BrokenLimits, result: Result) -> bool:
    """Whether a result is of a card that a prediction was asked about."""
    return result.limit.path == CARD and broken.predicted is not None


def _about_card(broken: BrokenLimits, result: Result) -> Finding:
    assert broken.predicted is not None
    card, is_sure = format_size(result.limit.value), result.passed is False
    said = f"does not fit a card of {card}" if is_sure else f"may not fit a card of {card}"
    rises = _rises(broken, None)
    finding = _over(result, f"{said}: {broken.predicted.range_text}", rises, None)
    return replace(finding, id="over_budget" if is_sure else "cannot_tell", bytes=None)


def _about_growth(broken: BrokenLimits, result: Result) -> Finding:
    leaks = broken.run.leaks
    rises = []
    for leak in leaks[:_CULPRITS]:
        if leak.place is not None:
            words = f"{leak.rate_text}: {leak.place}"
            rises.append(Rise(leak.place, leak.bytes_per_step, words))
    return _over(result, title_of([result]), rises, leaks[0].fix if leaks else None)


def _about_part(broken: BrokenLimits, result: Result) -> Finding:
    return _over(result, title_of([result]), _rises(broken, result.limit), None)


def _about_fragmentation(broken: BrokenLimits, result: Result) -> Finding:
    fragmentation = broken.run.explanation.fragmentation
    rises = []
    for pin in fragmentation.pinned_by[:_CULPRITS] if fragmentation is not None else ():
        if pin.place is not None:
            words = f"{pin.place} splits up {format_size(pin.held_bytes)} of free memory"
            rises.append(Rise(pin.place, pin.held_bytes, words))
    fix = f"run {_tuning(broken)} to find settings with less fragmentation"
    return _over(result, title_of([result]), rises, fix)


def _about_failures(broken: BrokenLimits, result: Result) -> Finding:
    title = DIED if result.why == DIED else title_of([result])
    fix = f"run {_explaining(broken)} to see what failed and why"
    return _over(result, title, (), fix)


def _explaining(broken: BrokenLimits) -> str:
    """The command that explains the run."""
    if broken.predicted is not None:
        return broken.predicted.command("predict")
    return f"vramlens explain {broken.run.source}"


def _tuning(broken: BrokenLimits) -> str:
    """The commands that search settings for the run."""
    if broken.predicted is not None:
        kept = broken.predicted.command("predict", options=("-o", "run.vram"))
        return f"{kept}, then vramlens tune run.vram,"
    return f"vramlens tune {broken.run.source}"


_BY_SUBJECT: Mapping[str, Callable[[BrokenLimits, Result], Finding]] = {
    "growth_per_step": _about_growth,
    "module": _about_part,
    "line": _about_part,
    "category": _about_part,
    "phase": _about_part,
    "fragmentation": _about_fragmentation,
}
"""By the first key of a limit's path; what is not here counts failures and retries."""


def _over(result: Result, title: str, rises: Sequence[Rise], fix: str | None) -> Finding:
    return Finding(
        id="over_budget",
        verdict=Verdict.PROVEN,
        title=title,
        bytes=bytes_over(result),
        place=rises[0].place if rises else None,
        evidence=tuple(rise.words for rise in rises),
        fix=fix,
        limits=(result.limit.scope,),
    )


# The lines that rose


def _rises(broken: BrokenLimits, limit: Limit | None) -> list[Rise]:
    """The lines that rose, the most first; without anything to compare with, those that hold
    most.

    Args:
        limit: only lines that this is about; None for all.
    """
    if broken.diff is not None:
        rises = _rises_of_diff(broken.diff)
    elif broken.budget.recorded:
        rises = _rises_since_update(broken.run, broken.budget.recorded)
    else:
        rises = _largest_lines(broken.run)
    return [rise for rise in rises if _is_about(broken.run, limit, rise.place)][:_CULPRITS]


def _is_about(run: Run, limit: Limit | None, place: Place) -> bool:
    """Whether a line is part of what a limit is about."""
    if limit is None or limit.path[0] == "phase":
        return True
    part, name = limit.path[0], limit.path[1]
    if part == "line":
        return is_line(place, name)
    line = run.lines.get(place)
    if line is None:
        return False
    if part == "category":
        return line.category == name
    pattern = module_pattern(name)
    return any(pattern.match(path) for path in line.modules)


def _rises_of_diff(diff: Diff) -> list[Rise]:
    return [
        Rise(line.place, line.change_bytes, _words_of_change(line))
        for line in diff.by_line
        if line.change_bytes > 0
    ]


def _words_of_change(line: LineChange) -> str:
    words = f"{signed_size(line.change_bytes)}: {line_words(line)}"
    return words if line.inner is None else f"{words}, allocated at {line.inner}"


def _rises_since_update(run: Run, recorded: Mapping[Place, int]) -> list[Rise]:
    changes = _changes_since(recorded, run)
    rises = [
        Rise(
            place,
            change,
            f"{signed_size(change)} since the budget was updated: {place}"
            f"{_main_module(run.lines[place])}",
        )
        for place, change in changes.items()
        if change > 0
    ]
    return sorted(rises, key=lambda rise: (-rise.bytes, str(rise.place)))


def _largest_lines(run: Run) -> list[Rise]:
    lines = sorted(run.lines.values(), key=lambda line: -line.bytes)
    return [
        Rise(
            line.place,
            line.bytes,
            f"{format_size(line.bytes)} at the peak: {line.place}{_main_module(line)}",
        )
        for line in lines
        if line.bytes
    ]


def _main_module(line: HeldLine) -> str:
    """The module that most of a line's bytes belong to, in brackets; "" without one."""
    if not line.modules:
        return ""
    path = max(line.modules, key=lambda module: line.modules[module])
    return f" ({path})" if path and line.modules[path] * 2 > line.bytes else ""


def _changes_since(recorded: Mapping[Place, int], run: Run) -> dict[Place, int]:
    """By line of the run, how much more it holds at the peak than the budget recorded."""
    now = {place: line.bytes for place, line in run.lines.items() if line.bytes}
    pairs = align(_code_lines(recorded), _code_lines(now)).after
    earlier = {new: recorded[old] for old, new in pairs.items()}
    return {place: size - earlier.get(place, 0) for place, size in now.items()}


def _code_lines(sizes: Mapping[Place, int]) -> list[CodeLine]:
    """Lines to be aligned: what a line held stands for what it asked for; of two that may be the
    same, the one with the same bytes is.
    """
    return [
        CodeLine(place, frozenset(), frozenset((size_bytes,)))
        for place, size_bytes in sizes.items()
    ]
