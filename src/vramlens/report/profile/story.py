"""The story of a profile: what it says, in order, before it is laid out as text or Markdown."""

from __future__ import annotations

import itertools
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramlens.ground.verdict import Verdict
from vramlens.report.explain.advice import VERBS, NextStep
from vramlens.report.wording import place_name, plain, sentence, share, short_place_name, visible
from vramlens.units import counted, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vramlens.analyses.finding import Finding
    from vramlens.analyses.profile.memory_events import Holder, MemoryReport
    from vramlens.analyses.profile.operators import OperatorRow
    from vramlens.analyses.profile.overview import CpuActivity, DeviceUse, Gap
    from vramlens.analyses.profile.profile import Profile

_BEGINS = "lines are those at which the function begins"


@dataclass(frozen=True, slots=True)
class Grid:
    """A table.

    Attributes:
        key: its slug, by which a layout knows it.
        title: what it shows.
        header: of all columns but the last, which the title stands over; they are aligned to the
            right.
        rows: their cells, the most important first.
        noun: what a row is, for what is cut.
        empty: why there are none; "" where there are.
        note: what needs saying about all of them.
        heights: of rows that are moments: fewer of them are the highest of as many parts; () for
            all others.
    """

    key: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    noun: str
    empty: str = ""
    note: str = ""
    heights: tuple[int, ...] = ()

    def top(self, count: int) -> tuple[tuple[str, ...], ...]:
        """The rows that are shown where there is room for so many."""
        if not self.heights or count >= len(self.rows):
            return self.rows[:count]
        bounds = [len(self.rows) * n // count for n in range(count + 1)]
        return tuple(
            self.rows[max(range(first, last), key=lambda n: self.heights[n])]
            for first, last in itertools.pairwise(bounds)
        )


@dataclass(frozen=True, slots=True)
class ProfileClaim:
    """A finding in words."""

    title: str
    evidence: tuple[str, ...]
    fix: str


@dataclass(frozen=True, slots=True)
class ProfileStory:
    """What there is to say: the answer, its figures, the tables, what to do, what is missing,
    what is next.
    """

    headline: str
    sentences: tuple[str, ...]
    grids: tuple[Grid, ...]
    claims: tuple[ProfileClaim, ...]
    notes: tuple[str, ...]
    next: NextStep


def profile_story(profile: Profile) -> ProfileStory:
    """The story; names that came with the trace have their control characters made visible."""
    return ProfileStory(
        headline=_headline(profile),
        sentences=tuple(
            filter(
                None, (_use_sentence(profile), _memory_sentence(profile), _trace_sentence(profile))
            )
        ),
        grids=tuple(filter(None, _grids(profile))),
        claims=tuple(_claim(finding) for finding in profile.findings),
        notes=tuple(sentence(visible(text)) for text in profile.missing),
        next=_next(profile),
    )


def _headline(profile: Profile) -> str:
    wall, use, memory = format_duration(profile.wall_ns), profile.use, profile.memory
    parts = []
    if use is not None:
        parts.append(
            f"GPU {use.device} is busy for {share(use.busy_ns, profile.wall_ns)} of {wall}"
        )
    elif profile.operators:
        top = profile.operators[0]
        parts.append(
            f"{visible(top.name)} takes the most CPU time, {format_duration(top.self_cpu_ns)} of {wall}"
            + (
                "; nothing ran on a GPU"
                if memory is None or memory.is_cpu
                else "; the trace holds no GPU kernels"
            )
        )
    else:
        parts.append(f"{wall} of a program, without operators")
    if memory is not None:
        more = "" if memory.exact else " or more"
        what = "memory" if not memory.is_cpu else "CPU memory"
        parts.append(f"{what} peaks at {format_size(memory.allocated_bytes)}{more}")
    return f"{'; '.join(parts)}."


def _use_sentence(profile: Profile) -> str:
    use = profile.use
    if use is None:
        return ""
    text = f"Idle for {format_duration(use.idle_ns)} in {counted(use.gaps, 'gap')}"
    if use.longest:
        text += f"; the longest, {format_duration(use.longest[0].ns)}: {_gap_words(use.longest[0])}"
    others = [
        f"GPU {each.device} {share(each.busy_ns, profile.wall_ns)}"
        for each in profile.devices
        if each.device != use.device
    ]
    return text + "." + (f" Others busy: {', '.join(others)}." if others else "")


def _gap_words(gap: Gap) -> str:
    where = {"before": "before the first kernel, ", "after": "after the last kernel, "}.get(
        gap.where, ""
    )
    return f"{where}{_did(gap.cpu, gap.ns)}" + (
        f" ({visible(short_place_name(gap.place))})" if gap.place else ""
    )


def _did(activities: Sequence[CpuActivity], whole_ns: int) -> str:
    """What the CPU did most."""
    if not activities or activities[0].name is None:
        return "no operator or runtime call ran on the CPU"
    top = activities[0]
    if (top.name or "").startswith("ProfilerStep#"):
        return f"Python ran outside any operator for {share(top.ns, whole_ns)} of it"
    if (top.name or "").startswith("enumerate(DataLoader)#"):
        return f"the CPU was loading data for {share(top.ns, whole_ns)} of it"
    words = {"region": "the CPU was in", "runtime": "the CPU was in"}.get(
        top.kind or "", "the CPU ran"
    )
    return f"{words} {visible(top.name or '')} for {share(top.ns, whole_ns)} of it"


def _memory_sentence(profile: Profile) -> str:
    memory = profile.memory
    if memory is None:
        return ""
    at = format_duration(memory.peak_ns - profile.wall_start_ns)
    text = f"Peak on {memory.device}: {format_size(memory.allocated_bytes)} allocated {at} in"
    text += f", in step {memory.peak_step}" if memory.peak_step is not None else ""
    if memory.reserved_bytes is not None:
        text += f"; at most {format_size(memory.reserved_bytes)} reserved"
    if not memory.exact:
        text += "; counted from the trace's beginning: what was there before is not known"
    if memory.grouped_by == "category" and memory.by_group:
        groups = [
            f"{plain(name)} {format_size(size)}" for name, size in list(memory.by_group.items())[:4]
        ]
        text += f". Likely {', '.join(groups)}"
    others = [
        f"{each.device} {format_size(each.allocated_bytes)}"
        for each in profile.memories[1:]
        if each.allocated_bytes
    ]
    return text + "." + (f" Peaks elsewhere: {', '.join(others[:4])}." if others else "")


def _trace_sentence(profile: Profile) -> str:
    if not profile.steps:
        return ""
    durations = sorted(step.end_ns - step.start_ns for step in profile.steps)
    text = f"{counted(len(profile.steps), 'profiler step')} of {format_duration(durations[len(durations) // 2])}"
    text += " (median)" if len(durations) > 1 else ""
    memory = profile.memory
    if memory is not None and len(set(memory.step_peaks)) > 1:
        first, last = memory.step_peaks[0], memory.step_peaks[-1]
        text += f"; their peaks go from {format_size(first)} to {format_size(last)}"
    return text + "."


def _grids(profile: Profile) -> list[Grid | None]:
    memory, use = profile.memory, profile.use
    grids: list[Grid | None] = [_operator_grid(profile)]
    if use is not None and profile.kernels:
        rows = tuple(
            (
                format_duration(row.total_ns),
                share(row.total_ns, use.busy_ns),
                f"{row.calls:,}",
                visible(row.name),
            )
            for row in profile.kernels
        )
        title = f"Kernels on GPU {use.device}"
        grids.append(Grid("kernels", title, ("time", "of busy", "calls"), rows, "kernel"))
    if memory is not None:
        grids += [
            _peak_grid(memory),
            _kept_grid(memory),
            _memory_grid(profile, memory),
            _timeline_grid(memory, profile),
        ]
    return [*grids, _gap_grid(use, profile)]


def _operator_grid(profile: Profile) -> Grid | None:
    if not profile.operators:
        return None
    on_gpu = profile.use is not None
    rows = tuple(
        (
            format_duration(row.self_cpu_ns),
            format_duration(row.total_cpu_ns),
            *(
                (format_duration(row.total_device_ns) if row.total_device_ns else "",)
                if on_gpu
                else ()
            ),
            f"{row.calls:,}",
            visible(row.name),
        )
        for row in profile.operators
    )
    header = ("self CPU", "CPU in all", *(("on GPU",) if on_gpu else ()), "calls")
    return Grid("operators", "Operators by CPU time", header, rows, "operator")


def _memory_grid(profile: Profile, memory: MemoryReport) -> Grid | None:
    def order(row: OperatorRow) -> tuple[int, str]:
        return -row.self_allocated_bytes, row.name

    rows = tuple(
        (
            format_size(row.self_allocated_bytes),
            format_size(row.self_memory_bytes),
            f"{row.calls:,}",
            visible(row.name),
        )
        for row in sorted(profile.operators, key=order)
        if row.self_allocated_bytes
    )
    if not rows:
        return None
    title = f"Operators by memory asked for on {memory.device}"
    return Grid("operators_memory", title, ("asked for", "net", "calls"), rows, "operator")


def _peak_grid(memory: MemoryReport) -> Grid:
    title = f"Alive at the peak on {memory.device}"
    header = ("size", "share", "count")
    if not memory.paired:
        empty = "Who held it is not known: this trace names no addresses (PyTorch before 1.11 wrote none)."
        return Grid("peak", title, header, (), "holder", empty=empty)
    rows = [_holder_row(holder, memory.allocated_bytes) for holder in memory.at_peak]
    if memory.before_bytes:
        before = (
            format_size(memory.before_bytes),
            share(memory.before_bytes, memory.allocated_bytes),
            "",
            "(there before the trace began)",
        )
        sizes = [holder.bytes for holder in memory.at_peak]
        rows.insert(sum(size >= memory.before_bytes for size in sizes), before)
    return Grid("peak", title, header, tuple(rows), "holder", note=_note(memory.at_peak))


def _note(holders: Sequence[Holder]) -> str:
    if not any(holder.place for holder in holders):
        return ""
    inferred = any(holder.inferred for holder in holders)
    return _BEGINS + ("; inferred: the backward of that function" if inferred else "")


def _holder_row(holder: Holder, whole: int) -> tuple[str, ...]:
    text = visible(holder.operator)
    if holder.place is not None:
        text += f", {place_name(holder.place)}" + (" (inferred)" if holder.inferred else "")
    if holder.category not in (None, "other"):
        text += f" [{plain(holder.category or '')}]"
    return format_size(holder.bytes), share(holder.bytes, whole), f"{holder.allocations:,}", text


def _kept_grid(memory: MemoryReport) -> Grid | None:
    if not memory.kept:
        return None
    whole = sum(holder.bytes for holder in memory.kept)
    rows = []
    for holder in memory.kept:
        size, part, count, text = _holder_row(holder, whole)
        rows.append(
            (size, part, count, text + (f", in {holder.steps} steps" if holder.steps > 1 else ""))
        )
    title = f"Not given back before the trace ends: {format_size(whole)} on {memory.device}"
    return Grid("kept", title, ("size", "share", "count"), tuple(rows), "holder")


def _timeline_grid(memory: MemoryReport, profile: Profile) -> Grid | None:
    if not memory.timeline:
        return None
    rows = tuple(
        (
            format_duration(moment.time_ns - profile.wall_start_ns),
            format_size(moment.bytes),
            ", ".join(
                f"{visible(plain(name))} {format_size(size)}"
                for name, size in sorted(moment.groups.items(), key=lambda item: -item[1])[:4]
                if size
            ),
        )
        for moment in memory.timeline
    )
    by = (
        f"likely, by {memory.grouped_by}"
        if memory.grouped_by == "category"
        else f"by {memory.grouped_by}"
    )
    title = f"Memory over time on {memory.device}" + (f", {by}" if memory.paired else "")
    return Grid(
        "timeline",
        title,
        ("at", "allocated"),
        rows,
        "moment",
        heights=tuple(moment.bytes for moment in memory.timeline),
    )


def _gap_grid(use: DeviceUse | None, profile: Profile) -> Grid | None:
    if use is None or not use.longest:
        return None
    rows = tuple(
        (
            format_duration(gap.ns),
            format_duration(gap.start_ns - profile.wall_start_ns),
            _gap_words(gap),
        )
        for gap in use.longest
    )
    return Grid(
        "gaps",
        f"Longest gaps on GPU {use.device}, and what the CPU did meanwhile",
        ("gap", "at"),
        rows,
        "gap",
    )


def _claim(finding: Finding) -> ProfileClaim:
    sure = (
        ""
        if finding.verdict in (Verdict.PROVEN, Verdict.NOT_A_PROBLEM)
        else f"{finding.verdict.capitalize()}: "
    )
    where = f" at {short_place_name(finding.place)}" if finding.place else ""
    title = visible(finding.title) + visible(where)
    return ProfileClaim(
        title=sentence(title) if not sure else sure + title + ".",
        evidence=tuple(sentence(visible(text)) for text in finding.evidence),
        fix=sentence(finding.fix or ""),
    )


_ASK = "torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True)"


def _next(profile: Profile) -> NextStep:
    """What tells more than this trace did."""
    memory = profile.memory
    if memory is None:
        return NextStep("profile the memory too", (_ASK,))
    if not memory.is_cpu and "run" in VERBS:
        size = format_size(memory.allocated_bytes)
        return NextStep(
            f"which lines hold the {size}, to the byte",
            ("vramlens run -o run.vram YOUR_SCRIPT.py",),
        )
    if not profile.with_stack:
        return NextStep(
            f"which functions ask for the {format_size(memory.allocated_bytes)}", (_ASK,)
        )
    source = profile.source
    if source == "-":
        return NextStep("more of each table", ("vramlens explain - --top 30 < FILE",))
    name = shlex.quote(f"./{source}" if source.startswith("-") else source)
    size = format_size(memory.allocated_bytes)
    return NextStep(
        f"more of each table, and the {size} over time", (f"vramlens explain {name} --top 30",)
    )
