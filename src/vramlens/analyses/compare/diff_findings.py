"""What a diff found, as claims: the failure, the growth, the peak and the lines that changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vramlens.analyses.compare.growth_changes import RunGrowth, run_growth
from vramlens.analyses.finding import Finding
from vramlens.analyses.leaks.growth import ENOUGH_STEPS
from vramlens.ground.verdict import Verdict
from vramlens.units import KIB, MIB, counted, format_size

if TYPE_CHECKING:
    from vramlens.analyses.compare.diff_answer import Diff, LineChange
    from vramlens.analyses.explanation import OomVerdict

_LINES = 10
_MUCH_OF_PEAK = 0.25
"""A problem that is gone leads the answer if it is at least this much of what the peak fell by."""


def findings_of(diff: Diff) -> tuple[Finding, ...]:
    """All claims, the most telling first; none where nothing changed."""
    if diff.unrelated:  # that one of two programs fails or grows says nothing of the other
        return (
            Finding("different_programs", Verdict.LIKELY, _unrelated(diff).rstrip(".")),
            *_peak(diff),
            *_lines(diff),
        )
    if is_small_growth(diff):
        return (*_failure(diff), *_peak(diff), *_lines(diff), *_growth(diff))
    return (*_failure(diff), *_growth(diff), *_peak(diff), *_lines(diff))


def is_small_growth(diff: Diff) -> bool:
    """True where nothing that grows in either run matters, as ``vramlens leaks`` has it."""
    growth = run_growth(diff)
    if growth is not None:
        return growth.is_small
    return all(leak.is_small for run in (diff.before, diff.after) for leak in run.leaks)


def signed_size(size_bytes: int) -> str:
    """A change: ``+212.00 MiB``, ``-3.00 GiB``."""
    return f"{'+' if size_bytes > 0 else ''}{format_size(size_bytes)}"


def told_apart(before_bytes: int, after_bytes: int) -> tuple[str, str]:
    """Two sizes in a unit in which they can be told apart: ``2,935.31 MiB`` where both are 2.87
    GiB.
    """
    old, new = format_size(before_bytes), format_size(after_bytes)
    if old != new or before_bytes == after_bytes:
        return old, new
    for unit, factor in (("MiB", MIB), ("KiB", KIB)):
        old, new = f"{before_bytes / factor:,.2f} {unit}", f"{after_bytes / factor:,.2f} {unit}"
        if old != new:
            return old, new
    return f"{before_bytes:,} bytes", f"{after_bytes:,} bytes"


def headline(diff: Diff) -> str:
    """What people ask after a fix, in one sentence."""
    old, new = diff.before.failure, diff.after.failure
    if diff.same_file:
        size = format_size(diff.before.requested_bytes)
        return f"Nothing changed: these are the same file ({size} requested at the peak)."
    if diff.unrelated:
        return _unrelated(diff)
    if old is not None and new is None:
        return _completes(diff)
    if new is not None and old is None:
        return f"{_fails_now(diff)}: {_how_it_fails(new).rstrip('.')}."
    growth = _growth_words(diff, is_placed=not is_small_growth(diff))
    if new is not None:
        return _fails_in_both(new, "" if is_small_growth(diff) else growth)
    numbers = _growth_and_peak(diff, growth.rstrip("."), _peak_words(diff))
    if diff.workload:
        return f"{different_work(diff)} By the numbers, {numbers[:1].lower()}{numbers[1:]}."
    return f"{numbers[:1].upper()}{numbers[1:]}."


def _growth_and_peak(diff: Diff, growth: str, peak: str) -> str:
    """Both in one sentence, what matters first."""
    if not growth:
        gone = None if diff.workload else _main_gone(diff)
        return peak if gone is None else f"Gone: {problem_words(gone)}; {peak}"
    if is_small_growth(diff):
        return f"{peak}; {growth[0].lower()}{growth[1:]} (too small to matter)"
    return f"{growth}; {peak}"


def _main_gone(diff: Diff) -> Finding | None:
    """The problem that is gone, where it is much of what the peak fell by; None where the peak rose."""
    change = diff.peak_change
    if change is not None and change.change_bytes > 0:
        return None
    fallen = 0 if change is None else abs(change.change_bytes)
    for problem in diff.went:
        if problem.bytes is not None and problem.bytes >= _MUCH_OF_PEAK * fallen:
            return problem
    return None


def _fails_now(diff: Diff) -> str:
    """That only the run after failed, and on a GPU of which size where that is another."""
    old, new = diff.before.gpu_bytes, diff.after.gpu_bytes
    if old is None or new is None or old == new:
        return "Completed before, runs out of memory now"
    return (
        f"Completed on a GPU of {format_size(old)} before, runs out of memory on one of "
        f"{format_size(new)} now"
    )


def _fails_in_both(failure: OomVerdict, growth: str) -> str:
    if growth:
        return f"Runs out of memory in both, and {growth[0].lower()}{growth[1:]}"
    return f"Runs out of memory in both: the second run {_how_it_fails(failure)}"


def _how_it_fails(failure: OomVerdict) -> str:
    """The headline of a failure, for a sentence that has said "out of memory" already."""
    return failure.headline.removeprefix("Out of memory: ")


def is_headed_by_work(diff: Diff) -> bool:
    """True where the headline says already that the work of the runs differs."""
    return bool(diff.workload) and diff.before.failure is None and diff.after.failure is None


def different_work(diff: Diff) -> str:
    """The sentence that the runs do not do the same work, and how that shows."""
    return f"Different workloads: {'; '.join(diff.workload)}."


def problem_words(problem: Finding) -> str:
    """A problem that came or went, with its line: the claim as ``explain`` makes it."""
    where = f" ({problem.place})" if problem.place is not None else ""
    return f"{problem.title}{where}"


def _unrelated(diff: Diff) -> str:
    return f"These look like two different programs: {diff.overlap.words}."


def numbers_of_both(diff: Diff) -> str:
    """What can be said of two programs that are not one: their figures, side by side."""
    phrases = []
    failures = _failures_of_both(diff)
    if failures:
        phrases.append(failures)
    if diff.headroom_bytes is not None and diff.headroom_bytes >= 0:
        phrases.append(
            f"the run after leaves {_headroom(diff, diff.headroom_bytes)} of the limit of the"
            " run before"
        )
    if _growth_words(diff) and not is_small_growth(diff):
        growth = run_growth(diff)
        assert growth is not None
        old, new = format_size(growth.before_bytes), format_size(growth.after_bytes)
        phrases.append(f"a step leaves {old} behind before and {new} after")
    phrases.append(_peak_words(diff))
    return f"Going by the numbers only: {'; '.join(phrases)}."


def _failures_of_both(diff: Diff) -> str:
    failed = (diff.before.failure is not None, diff.after.failure is not None)
    if not any(failed):
        return ""
    runs = "both" if all(failed) else f"only the run {'before' if failed[0] else 'after'}"
    return f"{runs} ran out of memory"


def _headroom(diff: Diff, headroom_bytes: int) -> str:
    return f"{'' if diff.headroom_exact else 'at least '}{format_size(headroom_bytes)}"


_STILL_RUNNING = ("signal", "every", "steps")
"""Why a recording was written while its program went on (``Meta.trigger``)."""


def _completes(diff: Diff) -> str:
    """The failure is gone, as far as the recordings show."""
    steps = diff.before.explanation.steps.count, diff.after.explanation.steps.count
    room = ""
    if diff.headroom_bytes is not None and diff.headroom_bytes >= 0:
        room = f": {_headroom(diff, diff.headroom_bytes)} of headroom"
    if steps[0] and steps[1] < steps[0]:
        return (
            f"Failed before in step {steps[0] - 1}; now {counted(steps[1], 'step')} without a "
            f"failure{room}. The run before survived that many too, so record more steps to be "
            "certain."
        )
    if diff.after.explanation.recording.meta.trigger in _STILL_RUNNING:
        return f"Failed before in step {max(steps[0] - 1, 0)}, has not failed by step {max(steps[1] - 1, 0)}{room}."
    return f"Failed before, completes now{room}."


def _growth_words(diff: Diff, *, is_placed: bool = False) -> str:
    """What became of the growth, in one sentence; "" where nothing did.

    Args:
        is_placed: whether to name the line.
    """
    growth = run_growth(diff)
    if growth is None:
        return ""
    old, new = _a_step(growth.before_bytes), _a_step(growth.after_bytes)
    place = growth.leak.place if is_placed and growth.leak is not None else None
    where = f" at {place}" if place is not None else ""
    if growth.after_bytes < growth.before_bytes:
        claim = f"Growth gone{_how_far(diff, growth)}" if growth.is_gone else "Grows less"
        return f"{claim}: {old} per step before{where}, {new} after."
    claim = "Grows more" if growth.before_bytes else "Grows now"
    maybe = "" if growth.is_certain else ", maybe a leak"
    return f"{claim}{maybe}: {old} per step before, {new} after{where}."


def _a_step(size_bytes: int) -> str:
    return format_size(size_bytes) if size_bytes else "0"


def _how_far(diff: Diff, growth: RunGrowth) -> str:
    """As far as how many steps show; "" where they are enough."""
    steps = diff.after.explanation.steps.count
    is_enough = growth.after_bytes or steps > ENOUGH_STEPS
    return "" if is_enough else f", as far as {counted(steps, 'step')} show"


def _peak_words(diff: Diff) -> str:
    change = diff.peak_change
    if change is not None:
        less = "lower" if change.change_bytes < 0 else "higher"
        old, new = told_apart(change.before_bytes, change.after_bytes)
        return f"the {change.name} peak is {format_size(abs(change.change_bytes))} {less}: {old} before, {new} after"
    requested = diff.counters["requested"]
    if requested.change_bytes:
        noise = format_size(requested.noise_bytes or 0)
        return (
            f"the peak did not change beyond noise: {signed_size(requested.change_bytes)}, "
            f"while repeated runs differ by {noise}"
        )
    unchanged = f"the peak is the same, {format_size(requested.after_bytes)} requested"
    if diff.by_line:
        return f"{unchanged}, but {counted(len(diff.by_line), 'line')} changed"
    if abs(diff.counters["reserved"].change_bytes) > diff.counters["reserved"].before_bytes // 50:
        reserved = diff.counters["reserved"].change_bytes
        return f"{unchanged}; {format_size(abs(reserved))} {'more' if reserved > 0 else 'less'} reserved"
    return f"nothing changed: {unchanged}"


def _failure(diff: Diff) -> Iterator[Finding]:
    old, new = diff.before.failure, diff.after.failure
    if old is not None and new is None:
        yield Finding(
            id="completes_now",
            verdict=Verdict.PROVEN,
            title=_completes(diff),
            bytes=diff.headroom_bytes,
            place=old.place,
        )
    elif new is not None and old is None:
        fix = _fix_of_failure(diff)
        title = f"{_fails_now(diff)}: {_how_it_fails(new)}"
        yield Finding(
            id="fails_now",
            verdict=Verdict.PROVEN,
            title=title,
            bytes=new.short_by_bytes,
            place=new.place,
            fix=fix,
        )


def _fix_of_failure(diff: Diff) -> str:
    """What to do about a failure that the run before did not have."""
    if diff.workload:
        return "compare runs of the same work, or see vramlens explain for fixes"
    for problem in diff.came:
        if problem.fix is not None:
            return problem.fix
    return "undo the change at the largest line below, or see vramlens explain for other fixes"


def _growth(diff: Diff) -> Iterator[Finding]:
    growth = run_growth(diff)
    if growth is None:
        return
    leak, is_more = growth.leak, growth.after_bytes > growth.before_bytes
    steps_before = counted(diff.before.explanation.steps.count, "step")
    steps_after = diff.after.explanation.steps.count
    is_shown = growth.after_bytes != 0 or steps_after > ENOUGH_STEPS
    yield Finding(
        id=_slug_of_growth(growth),
        verdict=leak.verdict if leak is not None and is_shown else Verdict.LIKELY,
        title=_growth_words(diff).rstrip("."),
        bytes=abs(growth.after_bytes - growth.before_bytes),
        place=None if leak is None else leak.place,
        evidence=(f"{steps_before} recorded before, {steps_after:,} after",),
        fix=leak.advice if leak is not None and is_more else None,
    )


def _slug_of_growth(growth: RunGrowth) -> str:
    if growth.is_gone:
        return "growth_gone"
    return "growth_less" if growth.after_bytes < growth.before_bytes else "growth_more"


def _peak(diff: Diff) -> Iterator[Finding]:
    change = diff.peak_change
    if change is None:
        return
    rose = change.change_bytes > 0
    lines = [line for line in diff.by_line if (line.change_bytes > 0) == rose]
    words = _peak_words(diff)
    yield Finding(
        id="peak_higher" if rose else "peak_lower",
        verdict=Verdict.PROVEN,
        title=f"{words[:1].upper()}{words[1:]}",
        bytes=abs(change.change_bytes),
        place=lines[0].place if lines else None,
        evidence=tuple(
            f"{signed_size(line.change_bytes)}: {line_words(line)}" for line in lines[:3]
        ),
    )


def _lines(diff: Diff) -> Iterator[Finding]:
    for line in diff.by_line[:_LINES]:
        yield Finding(
            id="line_more" if line.change_bytes > 0 else "line_less",
            verdict=Verdict.LIKELY if line.was is not None else Verdict.PROVEN,
            title=f"{signed_size(line.change_bytes)} at the peak: {line_words(line)}",
            bytes=abs(line.change_bytes),
            place=line.place,
            evidence=_line_evidence(line),
        )
    for line in diff.elsewhere[: max(0, _LINES - len(diff.by_line))]:
        yield Finding(
            id="line_more_elsewhere" if line.most_change_bytes > 0 else "line_less_elsewhere",
            verdict=Verdict.LIKELY if line.was is not None else Verdict.PROVEN,
            title=f"{signed_size(line.most_change_bytes)} at most (not at the peak):"
            f" {line_words(line)}",
            bytes=abs(line.most_change_bytes),
            place=line.place,
        )


def _line_evidence(line: LineChange) -> tuple[str, ...]:
    old, new = told_apart(line.before_bytes, line.after_bytes)
    sentences = [f"{old} before, {new} after"]
    if line.inner is not None:
        sentences.append(f"allocated at {line.inner}")
    if line.was is not None:
        sentences.append(f"matched by function and order (was {line.was})")
    return tuple(sentences)


def line_words(line: LineChange) -> str:
    """A line with the module that most of its change belongs to: ``model.layers.*.attn
    (train.py:44 in forward)``.
    """
    if line.modules and line.modules[0][0] and abs(line.modules[0][1]) * 2 > abs(line.change_bytes):
        return f"{line.modules[0][0]} ({line.place})"
    return str(line.place)
