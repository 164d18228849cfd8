"""Diff: what changed between runs of one program, by line, module and step; and whether the fix
did what it should.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from vramlens.analyses.compare.alignment import Alignment, align
from vramlens.analyses.compare.compared_run import HISTORY_SHARE, HeldLine, Run
from vramlens.analyses.compare.diff_findings import findings_of
from vramlens.analyses.compare.differences import differences
from vramlens.analyses.compare.finding_changes import FindingChanges, finding_changes
from vramlens.analyses.compare.growth_changes import GrowthChange, growth_changes
from vramlens.analyses.compare.job_change import GROWTH_SHARE, JobChange
from vramlens.analyses.compare.overlap import Overlap, overlap
from vramlens.analyses.compare.setting_difference import SettingDifference
from vramlens.analyses.compare.workload import workload_words
from vramlens.analyses.finding import Finding, Place
from vramlens.analyses.state_alignment import with_state
from vramlens.errors import UsageError
from vramlens.ground.printed_answer import PrintedAnswer
from vramlens.units import format_size

_Key = tuple[bool, Place]
"""A line by its name in the run after (True), or in the run before where it is gone (False)."""
COUNTERS = ("allocated", "requested", "active", "reserved")
_NO_LINE = HeldLine(Place("", 0, ""), 0, 0)


@dataclass(frozen=True, slots=True)
class CounterChange:
    """One of the allocator's peaks.

    Attributes:
        name: one of COUNTERS.
        before_bytes, after_bytes: of the runs that are shown.
        noise_bytes: how far repeated runs of one side lie apart; None with one run a side.
        certain: whether the sides differ by more than their own runs do.
    """

    name: str
    before_bytes: int
    after_bytes: int
    noise_bytes: int | None
    certain: bool

    @property
    def change_bytes(self) -> int:
        """After minus before."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True)
class LineChange:
    """What one line holds at the peak, before and after.

    Attributes:
        place: the line, as the run after knows it; as the run before did where it is gone.
        was: the line before, where its number, function or file's name is another now; None where
            it is not.
        before_bytes, after_bytes: requested bytes at each run's peak.
        most_before_bytes, most_after_bytes: the most that it held at any time.
        category: what the bytes are.
        modules: the change by module, numbers in a path folded to ``*`` where several changed;
            largest first.
        inner: the line in a package that the change came through, where most of it did; else None.
    """

    place: Place
    was: Place | None
    before_bytes: int
    after_bytes: int
    most_before_bytes: int
    most_after_bytes: int
    category: str
    modules: tuple[tuple[str, int], ...] = ()
    inner: Place | None = None

    @property
    def change_bytes(self) -> int:
        """After minus before, at the peak."""
        return self.after_bytes - self.before_bytes

    @property
    def most_change_bytes(self) -> int:
        """After minus before, of the most that it held."""
        return self.most_after_bytes - self.most_before_bytes


@dataclass(frozen=True, slots=True)
class StepChange:
    """The requested peak of one step; None where that run has no such step."""

    step: int
    before_bytes: int | None
    after_bytes: int | None


@dataclass(frozen=True, eq=False, repr=False)
class Diff(PrintedAnswer):
    """What changed.

    Attributes:
        before, after: the runs that are shown: of several, the one with the median requested peak.
        befores, afters: all of them.
        counters: by name, see COUNTERS.
        growth_before, growth_after: bytes that a step leaves behind; None where there are too few
            steps to tell.
        headroom_bytes: after a failure that is gone: what could still be reserved, at least; None
            where unknown.
        headroom_exact: whether the limit is known, and the headroom so just that.
        by_line: lines whose bytes at the peak changed by more than repeated runs do, the largest
            change first.
        elsewhere: lines that only hold more or less at other times.
        by_module: the change at the peak by module path, as ``Heap.by_module``.
        by_step: step by step.
        unattributed_bytes: the change of what has no line.
        aligned_lines, moved_lines: how many lines are in both runs, and how many of them at another
            number.
        overlap: how much of the memory is on lines and in modules of both.
        others: what else is different: versions, settings, steps.
        findings: the most telling first.
        came, went: problems that only the run after, or only the run before has, as ``explain``
            tells them; none of two different programs.
        growth_by_line: lines whose growth is another now, the largest change first.
        workload: how the work of the runs differs, one phrase each: then a higher peak is not the
            program's doing alone.
        job: of two folders, what changed on all ranks: the rest is about the rank that changed
            most. None for recordings.
    """

    before: Run
    after: Run
    befores: tuple[Run, ...]
    afters: tuple[Run, ...]
    counters: Mapping[str, CounterChange]
    growth_before: int | None
    growth_after: int | None
    headroom_bytes: int | None
    headroom_exact: bool
    by_line: tuple[LineChange, ...]
    elsewhere: tuple[LineChange, ...]
    by_module: tuple[tuple[str, int], ...]
    by_step: tuple[StepChange, ...]
    unattributed_bytes: int
    aligned_lines: int
    moved_lines: int
    overlap: Overlap
    others: tuple[SettingDifference, ...]
    findings: tuple[Finding, ...] = ()
    came: tuple[Finding, ...] = ()
    went: tuple[Finding, ...] = ()
    growth_by_line: tuple[GrowthChange, ...] = ()
    workload: tuple[str, ...] = ()
    job: JobChange | None = None

    @property
    def same_file(self) -> bool:
        """Whether it is one recording, given twice."""
        is_one_file = (
            len(self.befores) == len(self.afters) == 1 and self.before.source == self.after.source
        )
        return (
            is_one_file
            and not self.by_line
            and not any(counter.change_bytes for counter in self.counters.values())
        )

    @property
    def unrelated(self) -> bool:
        """Whether the runs look like two different programs: then no change of one into the
        other is claimed.
        """
        return self.overlap.unrelated

    @property
    def peak_bytes_change(self) -> int:
        """The change of the requested peak: what by_line and unattributed_bytes sum to, the same
        in every run.
        """
        return self.counters["requested"].change_bytes

    @property
    def peak_change(self) -> CounterChange | None:
        """The counter whose peak tells what changed, the allocated one if it can; None where none
        did.

        The allocated peak is what a limit is about, but by itself it may change by what rounding
        and splitting leave over, which depends on history as the reserved peak does.
        """
        allocated, requested = self.counters["allocated"], self.counters["requested"]
        if requested.certain and requested.change_bytes:
            agree = allocated.certain and allocated.change_bytes * requested.change_bytes > 0
            return allocated if agree else requested
        beyond = abs(allocated.change_bytes) > HISTORY_SHARE * allocated.before_bytes
        return allocated if allocated.certain and beyond else None

    def worse(
        self, tolerance_bytes: int = 0, allowed: Callable[[int], int] | None = None
    ) -> tuple[str, ...]:
        """Why the run after is worse, one phrase each; () where it is not.

        Args:
            tolerance_bytes: by how much the peak may rise.
            allowed: of a job, by how much a rank's peak of so many bytes may.
        """
        if self.job is not None:
            return tuple(self.job.worse(allowed or (lambda _peak_bytes: tolerance_bytes)))
        reasons = []
        if self.after.failure is not None and self.before.failure is None:
            reasons.append("it runs out of memory now")
        rise = self.peak_change
        if rise is not None and max(rise.change_bytes, self.peak_bytes_change) > tolerance_bytes:
            reasons.append(f"the {rise.name} peak rose by {format_size(rise.change_bytes)}")
        if self.growth_after and self.growth_before is not None:
            more = self.growth_after - self.growth_before
            if more > max(tolerance_bytes, GROWTH_SHARE * self.growth_after):
                reasons.append(f"every step leaves {format_size(more)} more behind")
        return tuple(reasons)


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
    others = differences(before, after, changed, alignment.files)
    problems = FindingChanges((), ())
    growth: tuple[GrowthChange, ...] = ()
    work: tuple[str, ...] = ()
    if not shared.unrelated:
        problems = finding_changes(before, after, alignment)
        growth = growth_changes(before, after, alignment)
        work = workload_words(before, after, others)
    diff = Diff(
        before=before,
        after=after,
        befores=tuple(befores),
        afters=tuple(afters),
        counters=_counters(befores, afters, before, after),
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
        moved_lines=len(alignment.moved),
        overlap=shared,
        others=others,
        came=problems.came,
        went=problems.went,
        growth_by_line=growth,
        workload=work,
    )
    return replace(diff, findings=findings_of(diff))


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


def _spread(*sides: Iterable[int]) -> int:
    return max(max(side) - min(side) for side in map(list, sides))


def _counters(
    befores: Sequence[Run], afters: Sequence[Run], before: Run, after: Run
) -> dict[str, CounterChange]:
    return {name: _counter(name, befores, afters, before, after) for name in COUNTERS}


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
        noise_bytes=_spread(old, new) if repeated else None,
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
