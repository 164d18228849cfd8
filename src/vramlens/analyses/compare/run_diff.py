"""Diff: what changed between runs of one program, by line, module and step; and whether the fix
did what it should.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from vramlens.analyses.compare.alignment import Alignment, align, with_state
from vramlens.analyses.compare.compared_run import HeldLine, Run
from vramlens.analyses.compare.diff_answer import (
    COUNTERS,
    CounterChange,
    Diff,
    LineChange,
    StepChange,
)
from vramlens.analyses.compare.diff_findings import findings_of
from vramlens.analyses.compare.differences import differences, workload_words
from vramlens.analyses.compare.finding_changes import FindingChanges, finding_changes
from vramlens.analyses.compare.growth_changes import GrowthChange, growth_changes
from vramlens.analyses.compare.overlap import overlap
from vramlens.analyses.finding import Place
from vramlens.errors import UsageError

_Key = tuple[bool, Place]
"""A line by its name in the run after (True), or in the run before where it is gone (False)."""
_NO_LINE = HeldLine(Place("", 0, ""), 0, 0)


def diff_runs(befores: Sequence[Run], afters: Sequence[Run]) -> Diff:
    """What changed from some runs to others; several runs of one side tell how far such runs lie
    apart anyway.

    Raises:
        UsageError: a side has no run.
    """
    if not befores or not afters:
        raise UsageError("diff needs one recording from before and one from after the change")
    before, after = _median(befores), _median(afters)
    alignment = align(before.code, after.code)
    shared = overlap(before, after, alignment)
    if not shared.unrelated:
        alignment = with_state(before, after, alignment)
    lines = _line_changes(befores, afters, before, after, alignment)
    changed = [line for line in lines if line.change_bytes]
    elsewhere = [line for line in lines if not line.change_bytes and line.most_change_bytes]
    shown, other = before.explanation, after.explanation
    headroom, exact = _headroom(before, after)
    setting_differences = differences(before, after, alignment.after, alignment.files)
    problems = FindingChanges((), ())
    growth: tuple[GrowthChange, ...] = ()
    work: tuple[str, ...] = ()
    if not shared.unrelated:
        problems = finding_changes(before, after, alignment)
        growth = growth_changes(before, after, alignment)
        work = workload_words(before, after, setting_differences)
    diff = Diff(
        before=before,
        after=after,
        befores=tuple(befores),
        afters=tuple(afters),
        counters={name: _counter(name, befores, afters, before, after) for name in COUNTERS},
        growth_before=_growth(befores),
        growth_after=_growth(afters),
        headroom_bytes=headroom,
        headroom_exact=exact,
        by_line=tuple(sorted(changed, key=lambda line: (-abs(line.change_bytes), str(line.place)))),
        elsewhere=tuple(
            sorted(elsewhere, key=lambda line: (-abs(line.most_change_bytes), str(line.place)))
        ),
        by_module=_module_changes(before, after),
        by_step=_steps(shown.steps.peak_bytes, other.steps.peak_bytes),
        unattributed_bytes=_unattributed(after) - _unattributed(before),
        aligned_lines=len(alignment.after),
        moved_lines=sum(_has_other_number(old, alignment.after[old]) for old in alignment.moved),
        overlap=shared,
        others=setting_differences,
        came=problems.came,
        went=problems.went,
        growth_by_line=growth,
        workload=work,
    )
    return replace(diff, findings=findings_of(diff))


def _has_other_number(old: Place, new: Place) -> bool:
    """Whether a line moved within its file; one of a file that was renamed need not have."""
    return (old.line, old.function) != (new.line, new.function)


def _median(runs: Sequence[Run]) -> Run:
    """The run with the median requested peak, the lower of two."""
    return sorted(runs, key=lambda run: run.requested_bytes)[(len(runs) - 1) // 2]


def _growth(runs: Sequence[Run]) -> int | None:
    """What a step leaves behind, in the middle one of the runs that can tell."""
    growths = sorted(run.growth for run in runs if run.growth is not None)
    return growths[(len(growths) - 1) // 2] if growths else None


def _differ(before: Iterable[int], after: Iterable[int]) -> bool:
    """Whether no run of one side lies within the other side's range."""
    old, new = list(before), list(after)
    return max(old) < min(new) or max(new) < min(old)


def _counter(
    name: str, befores: Sequence[Run], afters: Sequence[Run], before: Run, after: Run
) -> CounterChange:
    def of(run: Run) -> int:
        peak = run.explanation.peak
        return getattr(peak, f"{name}_bytes") if peak is not None else 0

    old, new = [of(run) for run in befores], [of(run) for run in afters]
    repeated = len(befores) > 1 or len(afters) > 1
    return CounterChange(
        name=name,
        before_bytes=of(before),
        after_bytes=of(after),
        noise_bytes=max(max(side) - min(side) for side in (old, new)) if repeated else None,
        certain=_differ(old, new),
    )


def _headroom(before: Run, after: Run) -> tuple[int | None, bool]:
    """What the run after leaves of the memory that the failed run had, and whether that limit is
    known.
    """
    failed, peak = before.failure, after.explanation.peak
    if failed is None or after.failure is not None or peak is None or failed.reserved_bytes is None:
        return None, False
    if failed.wall == "process_limit":
        limit, exact = failed.limit_bytes, failed.limit_bytes is not None
    elif failed.wall in ("device", "other_process") and failed.free_bytes is not None:
        limit, exact = failed.reserved_bytes + failed.free_bytes, True
    else:
        limit, exact = None, False
    # What it had reserved when it failed it could at least have.
    return (failed.reserved_bytes if limit is None else limit) - peak.reserved_bytes, exact


def _unattributed(run: Run) -> int:
    peak = run.explanation.peak
    return peak.heap.unattributed_bytes if peak is not None else 0


def _steps(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[StepChange, ...]:
    return tuple(
        StepChange(
            step,
            before[step] if step < len(before) else None,
            after[step] if step < len(after) else None,
        )
        for step in range(max(len(before), len(after)))
    )


def _line_changes(
    befores: Sequence[Run], afters: Sequence[Run], before: Run, after: Run, alignment: Alignment
) -> list[LineChange]:
    """The lines of which the sides differ by more than their own runs do."""
    names = _LineNames(before, after, alignment)
    olds = [names.lines_of(run, before) for run in befores]
    news = [names.lines_of(run, after) for run in afters]
    shown_old, shown_new = olds[befores.index(before)], news[afters.index(after)]
    changes = []
    for key in dict.fromkeys(key for side in (*olds, *news) for key in side):
        old, new = shown_old.get(key, _NO_LINE), shown_new.get(key, _NO_LINE)
        at_peak = old.bytes != new.bytes
        if at_peak or old.most_bytes != new.most_bytes:
            sides = (_sizes(olds, key, at_peak=at_peak), _sizes(news, key, at_peak=at_peak))
            if _differ(*sides):
                changes.append(_line_change(old, new, key[1], names.was(key)))
    return changes


def _sizes(side: Iterable[Mapping[_Key, HeldLine]], key: _Key, *, at_peak: bool) -> list[int]:
    """What a line held in each run of one side: at the peak, or at most."""
    lines = [lines_of_run.get(key, _NO_LINE) for lines_of_run in side]
    return [line.bytes if at_peak else line.most_bytes for line in lines]


def _line_change(old: HeldLine, new: HeldLine, place: Place, was: Place | None) -> LineChange:
    return LineChange(
        place=place,
        was=was,
        before_bytes=old.bytes,
        after_bytes=new.bytes,
        most_before_bytes=old.most_bytes,
        most_after_bytes=new.most_bytes,
        category=(new if new.bytes >= old.bytes else old).category,
        modules=_folded(_minus(new.modules, old.modules)),
        inner=_main_inner(old, new),
    )


class _LineNames:
    """The names that lines go by in a diff: those of the run after; of the run before where a line
    is gone.
    """

    def __init__(self, before: Run, after: Run, alignment: Alignment) -> None:
        self._before, self._after, self._alignment = before, after, alignment
        self._old_name = {new: old for old, new in alignment.after.items()}

    def lines_of(self, run: Run, shown: Run) -> dict[_Key, HeldLine]:
        """What a run held, by the names of the diff.

        Args:
            shown: the run of its side that the diff shows.
        """
        if run is shown:
            return {self._key(place, shown): line for place, line in run.lines.items()}
        places = align(run.code, shown.code).after
        lines: dict[_Key, HeldLine] = {}
        for place, line in run.lines.items():
            if place in places:
                lines[self._key(places[place], shown)] = line
            else:  # in this one of several runs only
                lines[(shown is self._after, place)] = line
        return lines

    def _key(self, place: Place, shown: Run) -> _Key:
        if shown is not self._before:
            return True, place
        now = self._alignment.after.get(place)
        return (False, place) if now is None else (True, now)

    def was(self, key: _Key) -> Place | None:
        """The line before, where its name is another now; None where it is not."""
        is_in_after, place = key
        old = self._old_name.get(place) if is_in_after else None
        return old if old in self._alignment.moved else None


def _minus(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    changes = {key: after.get(key, 0) - before.get(key, 0) for key in {**after, **before}}
    return {key: change for key, change in changes.items() if change}


_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")


def _folded(changes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Changes by module, those that differ in a number only as one: ``model.layers.*.attn``."""
    kin: dict[str, list[str]] = {}
    for path in changes:
        kin.setdefault(_NUMBER.sub("*", path), []).append(path)
    totals = {
        pattern if len(paths) > 1 else paths[0]: sum(changes[path] for path in paths)
        for pattern, paths in kin.items()
    }
    return tuple(sorted(totals.items(), key=lambda item: (-abs(item[1]), item[0])))


def _main_inner(before: HeldLine, after: HeldLine) -> Place | None:
    """The line in a package that most of a line's change came through; lines of packages do not
    move with an edit.
    """
    change_bytes = after.bytes - before.bytes
    sign = 1 if change_bytes > 0 else -1
    changes = {
        place: sign * (after.inner.get(place, 0) - before.inner.get(place, 0))
        for place in {**after.inner, **before.inner}
    }
    place = max(
        changes, key=lambda inner_place: (changes[inner_place], str(inner_place)), default=None
    )
    return place if place is not None and changes[place] * 2 > sign * change_bytes else None


def _module_changes(before: Run, after: Run) -> tuple[tuple[str, int], ...]:
    def of(run: Run) -> Mapping[str, int]:
        peak = run.explanation.peak
        return peak.heap.by_module if peak is not None else {}

    changes = _minus(of(after), of(before))
    return tuple(sorted(changes.items(), key=lambda item: (-abs(item[1]), item[0])))
