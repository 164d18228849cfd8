"""A run, ready to be compared with another: its figures, and what each line and module held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution, attribute
from vramlens.analyses.attribution.modules import OUTSIDE
from vramlens.analyses.explanation import Explanation, OomVerdict
from vramlens.analyses.finding import Place
from vramlens.analyses.leaks.growth import steps_missing
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.analyses.recording_explanation import explain_trace, needed_device
from vramlens.ground.place import path_in_packages
from vramlens.ground.verdict import Verdict
from vramlens.trace import DeviceTrace, Stacks, Trace

FEWEST_STEPS = 4
"""With fewer steps nothing can be said about growth, not even as far as they show
(analyses/leaks/growth.py).
"""
HISTORY_SHARE = 0.01
"""The allocated peak of the same requests differs between runs by less: blocks keep up to 1 MiB
that nobody asked for, where that is not worth splitting off (c10/cuda/CUDACachingAllocator.cpp:
should_split), and which ones depends on addresses. The requested peak is free of that.
"""


@dataclass(frozen=True, slots=True)
class HeldLine:
    """What one line of the user's held.

    Attributes:
        place: the line.
        bytes: requested bytes alive at the run's peak.
        most_bytes: the most that it held at any time.
        category: what most of the bytes at the peak are; "" where there are none.
        modules: the bytes at the peak by module path; "" is outside of any.
        inner: the bytes at the peak by the line that was running when the memory was asked for, in
            a package that the user's line called; empty where that is the user's own.
    """

    place: Place
    bytes: int
    most_bytes: int
    category: str = ""
    modules: Mapping[str, int] = field(default_factory=dict)
    inner: Mapping[Place, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of the user's that stands in a stack, and what tells it from its neighbours when lines
    move.

    Attributes:
        place: the line.
        calls: the functions that it called, as ``file:function``; empty where it only asked for
            memory itself.
        sizes: the sizes that were asked for right there.
    """

    place: Place
    calls: frozenset[str]
    sizes: frozenset[int]


@dataclass(frozen=True, eq=False)
class Run:
    """One recording of one device.

    Attributes:
        explanation: what ``vramlens explain`` says of it.
        view: who each allocation belongs to.
        lines: what each line held, by place.
        code: every line of the user's in any stack.
        growth: bytes that a step leaves behind in all; None where there are too few steps to tell.
        growth_at_most: the same if all that may be a leak is one; None where even that is not
            known.
        retries: how often the allocator gave back all that it cached to serve a request; None where
            unknown.
    """

    explanation: Explanation
    view: Attribution
    lines: Mapping[Place, HeldLine]
    code: tuple[CodeLine, ...]
    growth: int | None
    growth_at_most: int | None
    retries: int | None

    @property
    def device(self) -> int:
        """The device's index."""
        return self.view.device.device

    @property
    def source(self) -> str:
        """The file's name."""
        return self.explanation.recording.source

    @property
    def leaks(self) -> tuple[RecordedLeak, ...]:
        """What grows for certain or likely, the fastest first."""
        return _sure_leaks(self.explanation)

    @property
    def failure(self) -> OomVerdict | None:
        """The failure that ended the program; None where none did."""
        failed = self.explanation.oom
        return None if failed is None or failed.survived else failed

    @property
    def gpu_bytes(self) -> int | None:
        """The GPU's memory; None where the recording does not say."""
        return self.explanation.recording.meta.device(self.device).total_bytes

    @property
    def is_whole_window(self) -> bool:
        """Whether the recording holds all that it was asked for: nothing was overwritten or cut
        off.
        """
        trace, device = self.view.trace, self.view.device
        is_wrapped = trace.meta.is_empty or bool(trace.meta.wrapped.get(device.device))
        return not is_wrapped and device.whole and device.orphan_events == 0 and trace.complete

    @property
    def is_lower_bound(self) -> bool:
        """Whether the run may have had higher peaks than its recording shows."""
        peak = self.explanation.peak
        return peak is not None and "requested_bytes" not in peak.exact and not self.is_whole_window

    @property
    def requested_bytes(self) -> int:
        """The requested peak."""
        return self.explanation.peak.requested_bytes if self.explanation.peak is not None else 0


def run_of(trace: Trace, device: int | None = None) -> Run:
    """What a recording has to be compared by.

    Args:
        device: by default the one with the highest requested peak.

    Raises:
        UsageError: there is no such device.
        InputError: the recording holds no GPU memory.
    """
    chosen = needed_device(trace, device)
    view = attribute(trace, chosen)
    explanation = explain_trace(trace, device=chosen.device, view=view)
    peak = explanation.peak
    categories = {row.place: row.category for row in peak.heap.by_line} if peak is not None else {}
    growth = _growth_of(explanation)
    return Run(
        explanation=explanation,
        view=view,
        lines=_held_lines(view, categories),
        code=_code_lines(view),
        growth=growth,
        growth_at_most=_growth_at_most(explanation, growth),
        retries=_retries(trace, chosen),
    )


def _growth_of(explanation: Explanation) -> int | None:
    """Bytes that a step leaves behind; None where there are too few steps to tell."""
    leaks = _sure_leaks(explanation)
    # What may be a leak, had there been more steps, is not a growth of zero.
    is_open = any(leak.needs_steps for leak in explanation.leaks)
    is_enough = explanation.steps.count >= FEWEST_STEPS and not is_open
    return sum(leak.bytes_per_step for leak in leaks) if leaks or is_enough else None


def _growth_at_most(explanation: Explanation, growth: int | None) -> int | None:
    """The same if all that may be a leak is one; None where even that is not known."""
    if steps_missing(explanation.steps.count - 1) is not None:
        return growth or None
    possible = [
        leak.bytes_per_step
        for leak in explanation.leaks
        if leak.verdict == Verdict.POSSIBLE and leak.rows is not None
    ]
    return (growth or 0) + sum(possible)


def _sure_leaks(explanation: Explanation) -> tuple[RecordedLeak, ...]:
    """The tensors that every step leaves behind, for certain or likely: what is reserved in vain
    is not among them.
    """
    return tuple(leak for leak in explanation.leaks if leak.sure and leak.rows is not None)


def _retries(trace: Trace, device: DeviceTrace) -> int | None:
    """What the allocator counted; 0 where nothing was ever given back or refused, in a recording
    of the whole run.
    """
    stats = trace.meta.device(device.device).stats
    if "num_alloc_retries" in stats:
        return int(stats["num_alloc_retries"])
    is_whole = device.whole and device.orphan_events == 0 and not device.reserved.base_bytes
    if trace.is_profiler_trace:  # it shows no segments that were given back
        return None
    if not is_whole or device.out_of_memory or (device.segments.died < len(device.events)).any():
        return None
    return 0


def _held_lines(view: Attribution, categories: Mapping[Place, str]) -> dict[Place, HeldLine]:
    """What each line held, at the peak and at most."""
    device, frame = view.device, view.phases.frame
    places: dict[Place, int] = {}
    # One more: frame -1 is not a line.
    number = np.full(len(view.trace.stacks.frame_line) + 1, -1, np.int64)
    for line_frame in np.unique(frame).tolist():
        place = view.place(line_frame)
        if place is not None:
            number[line_frame] = places.setdefault(place, len(places))
    line = number[frame]
    most_bytes = most_held(device, line, len(places))
    rows = device.allocations.alive_after(device.requested.peak_event)
    rows = rows[line[rows] >= 0]
    sizes = device.allocations.requested_bytes[rows]
    modules = _by(line[rows], view.modules.module[rows], sizes)
    inner_frame = _inner_frames(view, rows)
    inner = _by(line[rows], inner_frame, sizes)
    lines = {}
    for place, i in places.items():
        by_module = {
            (view.modules.paths[m] if m != OUTSIDE else ""): n
            for m, n in modules.get(i, {}).items()
        }
        by_inner: dict[Place, int] = {}
        for line_frame, size in inner.get(i, {}).items():
            inner_place = view.place(line_frame)
            if inner_place is not None and inner_place != place:
                by_inner[inner_place] = by_inner.get(inner_place, 0) + size
        bytes_at_peak = sum(modules.get(i, {}).values())
        lines[place] = HeldLine(
            place=place,
            bytes=bytes_at_peak,
            most_bytes=int(most_bytes[i]),
            category=categories.get(place, ""),
            modules=by_module,
            inner=by_inner,
        )
    return lines


def _by(
    lines: NDArray[np.int64], keys: NDArray[np.int64], sizes: NDArray[np.int64]
) -> dict[int, dict[int, int]]:
    """Bytes by line and key."""
    bytes_by_line: dict[int, dict[int, int]] = {}
    if not len(lines):
        return bytes_by_line
    low = int(keys.min())
    span = int(keys.max()) - low + 1
    pairs, pair_of_row = np.unique(lines * span + (keys - low), return_inverse=True)
    totals = np.zeros(len(pairs), np.int64)
    np.add.at(totals, pair_of_row.reshape(-1), sizes)
    for pair, total in zip(pairs.tolist(), totals.tolist(), strict=True):
        bytes_by_line.setdefault(pair // span, {})[pair % span + low] = total
    return bytes_by_line


def most_held(device: DeviceTrace, line: NDArray[np.int64], lines: int) -> NDArray[np.int64]:
    """The most requested bytes that each group of allocations held at any time.

    Args:
        line: the group of each allocation, from 0 on; -1 is in none.
        lines: how many groups there are.
    """
    allocations, events = device.allocations, len(device.events)
    base = np.zeros(lines, np.int64)
    old = (allocations.born < 0) & (line >= 0)
    np.add.at(base, line[old], allocations.requested_bytes[old])
    # An event is about one allocation: by event its line and what it adds, then line by line in the
    # order of events.
    change, line_of_event = np.zeros(events, np.int64), np.full(events, -1, np.int64)
    born = (allocations.born >= 0) & (line >= 0)
    change[allocations.born[born]], line_of_event[allocations.born[born]] = (
        allocations.requested_bytes[born],
        line[born],
    )
    died = (allocations.died < events) & (line >= 0)
    np.subtract.at(change, allocations.died[died], allocations.requested_bytes[died])
    line_of_event[allocations.died[died]] = line[died]
    about = np.flatnonzero(line_of_event >= 0)
    small = np.uint16 if lines < 2**16 else np.int64  # NumPy sorts 16 bits by radix
    order = about[np.argsort(line_of_event[about].astype(small), kind="stable")]
    if not len(order):
        return base
    running, line_of_change = np.cumsum(change[order]), line_of_event[order]
    first = np.flatnonzero(np.append(True, line_of_change[1:] != line_of_change[:-1]))
    before = np.where(first > 0, running[first - 1], 0)
    highest = np.maximum.reduceat(running, first) - before
    base[line_of_change[first]] += np.maximum(highest, 0)
    return base


def _inner_frames(view: Attribution, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The innermost frame outside of PyTorch of each allocation, as a frame id; -1 without a
    stack.
    """
    stacks = view.trace.stacks
    stack = view.device.allocations.stack[rows]
    has_stack = stack < len(stacks)
    frames = np.full(len(rows), -1, np.int64)
    frames[has_stack] = stacks.first_frame(_outside_torch(stacks))[stack[has_stack]]
    return frames


def _outside_torch(stacks: Stacks) -> NDArray[np.bool_]:
    """One flag a frame: whether it is code that is not PyTorch's, the interpreter's or
    synthetic.
    """
    flags = np.array(stacks.user_frames)
    for file in np.unique(stacks.frame_file[~flags]).tolist():
        inside = path_in_packages(stacks.strings[file])
        package = inside.replace("\\", "/").partition("/")[0]
        if package and package not in ("torch", "functorch"):
            flags[stacks.frame_file == file] = True
    return flags


def _code_lines(view: Attribution) -> tuple[CodeLine, ...]:
    """Every line of the user's that stands in a stack of this device."""
    stacks, allocations = view.trace.stacks, view.device.allocations
    used = np.zeros(len(stacks), np.bool_)
    used[np.unique(allocations.stack[allocations.stack < len(stacks)])] = True
    frames, starts = stacks.frames, stacks.starts
    owner = np.repeat(np.arange(len(stacks)), np.diff(starts))
    user_positions = np.flatnonzero(used[owner] & stacks.user_frames[frames])
    innermost = user_positions == starts[owner[user_positions]]
    calls: dict[Place, set[str]] = {}
    sizes: dict[Place, set[int]] = {}
    place_of = {frame: view.place(frame) for frame in np.unique(frames[user_positions]).tolist()}
    callee = np.where(innermost, -1, frames[np.maximum(user_positions - 1, 0)].astype(np.int64))
    width = len(stacks.frame_line) + 1
    for pair in np.unique(frames[user_positions].astype(np.int64) * width + callee + 1).tolist():
        place, called = place_of[pair // width], pair % width - 1
        if place is not None:
            called_names = calls.setdefault(place, set())
            if called >= 0:
                frame = stacks.frame(called)
                called_names.add(
                    f"{frame.file.replace(chr(92), '/').rpartition('/')[2]}:{frame.function}"
                )
    known_stack = allocations.stack < len(stacks)
    user = np.full(len(allocations), -1, np.int64)
    user[known_stack] = stacks.user_frame[allocations.stack[known_stack]]
    rows = np.flatnonzero(user >= 0)
    if len(rows):
        distinct_sizes, size_of_row = np.unique(
            allocations.requested_bytes[rows], return_inverse=True
        )
        for pair in np.unique(user[rows] * len(distinct_sizes) + size_of_row.reshape(-1)).tolist():
            place = place_of.get(pair // len(distinct_sizes))
            if place is not None:
                sizes.setdefault(place, set()).add(int(distinct_sizes[pair % len(distinct_sizes)]))
    return tuple(
        CodeLine(place, frozenset(called), frozenset(sizes.get(place, ())))
        for place, called in calls.items()
    )
