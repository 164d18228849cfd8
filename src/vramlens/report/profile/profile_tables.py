"""The tables of a profile: operators, kernels, what was alive at the peak, what stayed, gaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vramlens.report.document import Column, Cut, LastColumn, Table, cut_whole
from vramlens.report.wording import place_name, plain, share, short_place_name, visible
from vramlens.units import format_duration, format_size

if TYPE_CHECKING:
    from vramlens.analyses.profile.explained_profile import Profile
    from vramlens.analyses.profile.memory_events import AllocatedMoment, Holder, MemoryReport
    from vramlens.analyses.profile.operators import OperatorRow
    from vramlens.analyses.profile.overview import CpuActivity, DeviceActivity, Gap

_BEGINS = "lines are where the function begins"
_MOST_GROUPS = 4
_HOLDER_COLUMNS = ("size", "share", "count")
# How many rows stay, by the step of a cut.
_FIRST_ROWS = {2: 6, 3: 5, 7: 4, 9: 3, 12: 2, 14: 1}
_ROWS = {2: 5, 3: 4, 7: 3, 10: 2, 13: 1, 15: 0}
_KEPT_ROWS = {2: 5, 3: 4, 7: 3, 8: 2, 9: 1, 11: 0}
_NOTE_GOES = Cut(3, {"note": ""})


def tables_of(profile: Profile) -> Iterator[Table]:
    """Yields the tables that the profile has rows for; those for whom there is room go first."""
    memory, use = profile.memory, profile.use
    if profile.operators:
        yield _operators(profile)
    if use is not None and profile.kernels:
        yield _kernels(profile, use)
    if memory is not None:
        yield from _memory_tables(memory, profile)
    if use is not None and use.longest:
        yield replace(_gaps(use, profile), cuts=cut_whole(1))


def _memory_tables(memory: MemoryReport, profile: Profile) -> Iterator[Table]:
    yield _alive_at_peak(memory)
    if memory.kept:
        yield _kept(memory)
    allocating = [row for row in profile.operators if row.self_allocated_bytes]
    if allocating:
        yield replace(_allocating_operators(allocating, memory), cuts=cut_whole(1))
    if memory.timeline:
        yield replace(_timeline(memory, profile), cuts=cut_whole(1))


def gap_words(gap: Gap) -> str:
    """Where a gap is, and what the CPU did during them."""
    moments = {"before": "before the first kernel, ", "after": "after the last kernel, "}
    place = f" ({visible(short_place_name(gap.place))})" if gap.place else ""
    return f"{moments.get(gap.where, '')}{_cpu_words(gap.cpu, gap.ns)}{place}"


def _cpu_words(activities: Sequence[CpuActivity], gap_ns: int) -> str:
    """What the CPU did most."""
    if not activities or activities[0].name is None:
        return "no operator or runtime call ran on the CPU"
    longest = activities[0]
    name = longest.name or ""
    part = share(longest.ns, gap_ns)
    if name.startswith("ProfilerStep#"):
        return f"Python ran outside any operator for {part} of it"
    if name.startswith("enumerate(DataLoader)#"):
        return f"the CPU was loading data for {part} of it"
    verb = "the CPU was in" if longest.kind in ("region", "runtime") else "the CPU ran"
    return f"{verb} {visible(name)} for {part} of it"


def titled_table(
    title: str, names: Sequence[str], rows: Sequence[tuple[str, ...]], noun: str
) -> Table:
    """A table of which rows go before others do."""
    return Table(
        columns=(*map(Column, names), Column("", is_right=False)),
        rows=tuple(rows),
        last=LastColumn.CUT,
        title=title,
        noun=noun,
        header_style="bold",
        cuts=_row_cuts(_ROWS),
    )


def _row_cuts(rows_by_step: Mapping[int, int]) -> tuple[Cut, ...]:
    return tuple(Cut(step, {"top": rows}) for step, rows in rows_by_step.items())


def _operators(profile: Profile) -> Table:
    has_gpu = profile.use is not None
    names = ["self CPU", "CPU total", *(["on GPU"] if has_gpu else []), "calls"]
    rows = [_operator_row(row, has_gpu=has_gpu) for row in profile.operators]
    table = titled_table("Operators by CPU time", names, rows, "operator")
    return replace(table, cuts=_row_cuts(_FIRST_ROWS))


def operator_words(row: OperatorRow) -> str:
    """An operator's name, with the shapes or the line that its row is about."""
    words = visible(row.name)
    if row.shapes:
        words += f" {visible(row.shapes)}"
    if row.place is not None:
        words += f", {place_name(row.place)}"
    return words


def _operator_row(row: OperatorRow, *, has_gpu: bool) -> tuple[str, ...]:
    on_gpu = format_duration(row.total_device_ns) if row.total_device_ns else ""
    return (
        format_duration(row.self_cpu_ns),
        format_duration(row.total_cpu_ns),
        *([on_gpu] if has_gpu else []),
        f"{row.calls:,}",
        visible(row.name),
    )


def _kernels(profile: Profile, use: DeviceActivity) -> Table:
    rows = [
        (
            format_duration(row.total_ns),
            share(row.total_ns, use.busy_ns),
            f"{row.calls:,}",
            visible(row.name),
        )
        for row in profile.kernels
    ]
    return titled_table(
        f"Kernels on GPU {use.device}", ("time", "of busy", "calls"), rows, "kernel"
    )


def _alive_at_peak(memory: MemoryReport) -> Table:
    title = f"In use at the peak on {memory.device}"
    if not memory.paired:
        empty = "It is unknown what used it: this trace has no addresses (PyTorch before 1.11)."
        return replace(titled_table(title, _HOLDER_COLUMNS, (), "holder"), empty=empty)
    rows = [_holder_row(holder, memory.allocated_bytes) for holder in memory.at_peak]
    if memory.before_bytes:
        before = (
            format_size(memory.before_bytes),
            share(memory.before_bytes, memory.allocated_bytes),
            "",
            "(allocated before the trace began)",
        )
        larger = [holder for holder in memory.at_peak if holder.bytes >= memory.before_bytes]
        rows.insert(len(larger), before)
    table = titled_table(title, _HOLDER_COLUMNS, rows, "holder")
    cuts = (*_row_cuts(_FIRST_ROWS), _NOTE_GOES)
    return replace(table, note=_note(memory.at_peak), cuts=cuts)


def _note(holders: Sequence[Holder]) -> str:
    if not any(holder.place for holder in holders):
        return ""
    if any(holder.inferred for holder in holders):
        return f"{_BEGINS}; inferred: the backward of that function"
    return _BEGINS


def _holder_row(holder: Holder, total_bytes: int) -> tuple[str, str, str, str]:
    words = visible(holder.operator)
    if holder.place is not None:
        inferred = " (inferred)" if holder.inferred else ""
        words += f", {place_name(holder.place)}{inferred}"
    if holder.category not in (None, "other"):
        words += f" [{plain(holder.category or '')}]"
    part = share(holder.bytes, total_bytes)
    return format_size(holder.bytes), part, f"{holder.allocations:,}", words


def _kept(memory: MemoryReport) -> Table:
    total_bytes = sum(holder.bytes for holder in memory.kept)
    rows = []
    for holder in memory.kept:
        *figures, words = _holder_row(holder, total_bytes)
        steps = f", in {holder.steps} steps" if holder.steps > 1 else ""
        rows.append((*figures, words + steps))
    title = f"Not freed before the end of the trace: {format_size(total_bytes)} on {memory.device}"
    table = titled_table(title, _HOLDER_COLUMNS, rows, "holder")
    return replace(table, cuts=_row_cuts(_KEPT_ROWS))


def _allocating_operators(operators: Sequence[OperatorRow], memory: MemoryReport) -> Table:
    by_size = sorted(operators, key=lambda row: (-row.self_allocated_bytes, row.name))
    rows = [
        (
            format_size(row.self_allocated_bytes),
            format_size(row.self_memory_bytes),
            f"{row.calls:,}",
            visible(row.name),
        )
        for row in by_size
    ]
    title = f"Operators by requested memory on {memory.device}"
    return titled_table(title, ("requested", "net", "calls"), rows, "operator")


def _timeline(memory: MemoryReport, profile: Profile) -> Table:
    rows = [
        (
            format_duration(moment.time_ns - profile.wall_start_ns),
            format_size(moment.bytes),
            _group_words(moment),
        )
        for moment in memory.timeline
    ]
    title = f"Memory over time on {memory.device}"
    if memory.paired:
        likely = "likely, " if memory.grouped_by == "category" else ""
        title += f", {likely}by {memory.grouped_by}"
    heights = tuple(moment.bytes for moment in memory.timeline)
    return replace(titled_table(title, ("at", "allocated"), rows, "moment"), heights=heights)


def _group_words(moment: AllocatedMoment) -> str:
    by_size = sorted(moment.groups.items(), key=lambda group: -group[1])[:_MOST_GROUPS]
    return ", ".join(
        f"{visible(plain(name))} {format_size(size)}" for name, size in by_size if size
    )


def _gaps(use: DeviceActivity, profile: Profile) -> Table:
    rows = [
        (
            format_duration(gap.ns),
            format_duration(gap.start_ns - profile.wall_start_ns),
            gap_words(gap),
        )
        for gap in use.longest
    ]
    title = f"Longest gaps on GPU {use.device}, and what the CPU did during them"
    return titled_table(title, ("gap", "at"), rows, "gap")
