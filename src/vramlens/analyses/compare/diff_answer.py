"""The answer of a diff: what changed in the peaks, by line, module and step, and whether it is worse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from vramlens.analyses.compare.compared_run import HISTORY_SHARE, Run
from vramlens.analyses.compare.growth_changes import GrowthChange
from vramlens.analyses.compare.job_change import GROWTH_SHARE, JobChange
from vramlens.analyses.compare.overlap import Overlap
from vramlens.analyses.finding import Finding, Place
from vramlens.ground.printed_answer import PrintedAnswer
from vramlens.units import format_size

COUNTERS = ("allocated", "requested", "active", "reserved")


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """Something that is not the memory itself.

    Attributes:
        name: a stable slug: torch, gpu, gpu_memory, cuda, driver, process_limit, settings, command, steps, ranks,
            marks, missing, files, scale; of profiler traces gpu_busy, cpu_busy, step_time, kept and
            operator:NAME.
        before, after: as text; None where a recording does not say.
        words: the difference in one phrase.
        is_of_work: the runs were given different work: another batch, length or number of ranks.
    """

    name: str
    before: str | None
    after: str | None
    words: str
    is_of_work: bool = False

    @staticmethod
    def between(
        name: str, noun: str, before: str | None, after: str | None
    ) -> Iterator[SettingDifference]:
        """Yields the difference of two texts; nothing where they are alike, or one is not known."""
        if before is not None and after is not None and before != after:
            words = f"{noun}: {before} before, {after} after"
            yield SettingDifference(name, before, after, words)


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

    @property
    def unjudged(self) -> tuple[str, ...]:
        """Why the run after may be worse than it looks, one phrase each; () where it is not."""
        if self.job is not None:
            return self.job.unjudged
        if not self.after.is_lower_bound:
            return ()
        missing = self.after.explanation.recording.missing
        why = f" (not recorded: {missing[0]})" if missing else ""
        return (f"the peak of {self.after.source} is a lower bound{why}",)

    @property
    def _only_got_further(self) -> bool:
        """Whether both runs failed, and the later one no earlier: its peak is what it came to."""
        if self.before.failure is None or self.after.failure is None:
            return False
        return self.after.explanation.steps.count >= self.before.explanation.steps.count

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
        rise = None if self._only_got_further else self.peak_change
        if rise is not None and max(rise.change_bytes, self.peak_bytes_change) > tolerance_bytes:
            reasons.append(f"the {rise.name} peak rose by {format_size(rise.change_bytes)}")
        if self.growth_after and self.growth_before is not None:
            more = self.growth_after - self.growth_before
            if more > max(tolerance_bytes, GROWTH_SHARE * self.growth_after):
                reasons.append(f"every step leaves {format_size(more)} more behind")
        return tuple(reasons)
