"""What one call of a function did to a device's memory, and which lines did it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import CodeType

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.phases import Phases, phases_of
from vramlens.analyses.attribution.steps import steps_of
from vramlens.analyses.finding import Place
from vramlens.trace import DeviceTrace, Trace


@dataclass(frozen=True, slots=True)
class LineShare:
    """What one user line allocated during the call and had not given up: at the peak, or at the
    end.

    Attributes:
        place: the line; None where PyTorch recorded no Python stack.
        bytes, allocations: allocated bytes, and how many allocations.
        inferred_bytes: the part of ``bytes`` that the backward pass asked for on behalf of this
            line (likely).
    """

    place: Place | None
    bytes: int
    allocations: int
    inferred_bytes: int


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of the function's source.

    Attributes:
        line: its number, from 1.
        source: its text.
        hits: how often it was run; None where that was not followed.
        change_bytes: allocated less freed while it ran, over all its runs.
        peak_bytes: the highest that memory stood above the start of the call while it ran; None
            where it did not run.
    """

    line: int
    source: str
    hits: int | None
    change_bytes: int
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What a call did to the memory of one device, in allocated bytes.

    Attributes:
        device: its index.
        kept_bytes: after the call less before it, by the allocator's counters (exact).
        peak_bytes: the highest above the start; None where nothing could be recorded.
        at_peak, stayed: the lines behind the peak and behind what stayed, largest first.
        freed_at_peak_bytes, freed_bytes: what was there before the call and had been freed at the
            peak, at the end: the shares less these are ``peak_bytes`` and ``kept_bytes``.
        lines: the function's source, with ``lines=True``.
        exact: whether the recorded events add up to what the counters say.
    """

    device: int
    kept_bytes: int
    peak_bytes: int | None
    at_peak: tuple[LineShare, ...]
    stayed: tuple[LineShare, ...]
    freed_at_peak_bytes: int
    freed_bytes: int
    lines: tuple[SourceLine, ...]
    exact: bool


@dataclass(frozen=True, slots=True)
class LinesSeen:
    """Which line of the function was running when.

    Attributes:
        lines, times_ns: one entry each time that a line began: its number, the time since the
            epoch.
        hits: how often each line began.
        followed: whether that is all of them; else only stacks tell lines.
    """

    lines: Sequence[int]
    times_ns: Sequence[int]
    hits: Mapping[int, int]
    followed: bool


@dataclass(frozen=True, eq=False)
class Moves:
    """What a call did to a device: one row an event of the call.

    Attributes:
        trace, device: where the events are.
        kept: what the counters say.
        delta, level: allocated bytes: by how much each event changed them, how far above the start
            they are after it.
    """

    trace: Trace
    device: DeviceTrace
    kept: int
    delta: NDArray[np.int64]
    level: NDArray[np.int64]


def moves_of(trace: Trace, device: DeviceTrace, kept: int, ended_us: int) -> Moves:
    """The moves of a call that ended at a time. Frees count when they are asked for, as in
    ``memory_allocated``.
    """
    rows, count = device.allocations, len(device.events)
    delta = np.zeros(count + 1, np.int64)  # one more: what is never freed
    born = rows.born >= 0
    np.add.at(delta, rows.born[born], rows.taken_bytes[born])
    np.subtract.at(delta, rows.free_requested, rows.taken_bytes)
    if delta[:count].sum() != kept:  # other threads went on
        count = int(np.searchsorted(device.clock_us, ended_us, side="right"))
    return Moves(
        trace=trace, device=device, kept=kept, delta=delta[:count], level=np.cumsum(delta[:count])
    )


def device_use(moves: Moves, lines: tuple[SourceLine, ...]) -> DeviceUse:
    """What the call did to the device, with the lines behind it."""
    device, level = moves.device, moves.level
    phases = phases_of(moves.trace, device, steps_of(moves.trace, device))
    at = int(level.argmax()) if len(level) and level.max() > 0 else -1
    at_peak, freed_at_peak = _shares(moves, phases, at)
    stayed, freed = _shares(moves, phases, len(level) - 1)
    return DeviceUse(
        device=device.device,
        kept_bytes=moves.kept,
        peak_bytes=int(level[at]) if at >= 0 else 0,
        at_peak=at_peak,
        stayed=stayed,
        freed_at_peak_bytes=freed_at_peak,
        freed_bytes=freed,
        lines=lines,
        exact=int(moves.delta.sum()) == moves.kept,
    )


def _shares(moves: Moves, phases: Phases, event: int) -> tuple[tuple[LineShare, ...], int]:
    """The lines behind what the call had allocated right after an event; and what it had freed
    of older memory.
    """
    rows = moves.device.allocations
    alive_rows = np.flatnonzero(
        (rows.born >= 0) & (rows.born <= event) & (rows.free_requested > event)
    )
    older = (rows.born < 0) & (rows.free_requested >= 0) & (rows.free_requested <= event)
    sums: dict[Place | None, list[int]] = {}
    columns = (phases.frame[alive_rows], rows.taken_bytes[alive_rows], phases.inferred[alive_rows])
    for frame, size, inferred in zip(*(column.tolist() for column in columns), strict=True):
        code_frame = moves.trace.stacks.frame(frame) if frame >= 0 else None
        total = sums.setdefault(
            Place(code_frame.file, code_frame.line, code_frame.function) if code_frame else None,
            [0, 0, 0],
        )
        total[0] += size
        total[1] += 1
        total[2] += size if inferred else 0
    shares = [LineShare(place, *total) for place, total in sums.items()]
    return tuple(sorted(shares, key=lambda share: (-share.bytes, str(share.place)))), int(
        rows.taken_bytes[older].sum()
    )


def source_lines(
    moves: Moves, code: CodeType, source: Mapping[int, str], seen: LinesSeen, *, is_nested: bool
) -> tuple[SourceLine, ...]:
    """The function's lines with what each did.

    An event whose stack shows the function is on the line that the stack says. Others (autograd's
    threads have no Python stack) are on the line that was running by the clock; without a clock, on
    the line of the event before.
    """
    line_of_move = (
        _lines_by_stack(moves, code) if not is_nested else np.zeros(len(moves.delta), np.int64)
    )
    count = len(line_of_move)
    changes: dict[int, int] = {}
    peaks: dict[int, int] = {}
    if seen.followed:
        lines, began = np.array(seen.lines), np.array(seen.times_ns)
        # An event's time is cut to the microsecond; which of two lines it was, the stack knows.
        times = moves.device.clock_us[:count] * 1000 + 500
        turn = np.maximum(np.searchsorted(began, times, side="right") - 1, 0)
        for shift in (1, -1):
            other = np.clip(turn + shift, 0, len(lines) - 1)
            turn = np.where(
                (line_of_move > 0) & (lines[turn] != line_of_move) & (lines[other] == line_of_move),
                other,
                turn,
            )
        where = np.where(line_of_move > 0, line_of_move, lines[turn])
        before = np.searchsorted(np.maximum.accumulate(turn), np.arange(len(lines)), side="left")
        level = np.concatenate(([0], moves.level))
        _raise(peaks, lines, level[before])
    elif line_of_move.any():
        with_line = np.flatnonzero(line_of_move)
        where = line_of_move[
            with_line[np.maximum(np.searchsorted(with_line, np.arange(count), side="right") - 1, 0)]
        ]
    else:
        where = np.zeros(count, np.int64)
    _raise(peaks, where, moves.level)
    for line, change in zip(where.tolist(), moves.delta.tolist(), strict=True):
        changes[line] = changes.get(line, 0) + change
    texts = source or dict.fromkeys(sorted({*seen.hits, *changes} - {0}), "")
    return tuple(
        SourceLine(
            line=n,
            source=text,
            hits=seen.hits.get(n, 0) if seen.followed else None,
            change_bytes=changes.get(n, 0),
            peak_bytes=peaks.get(n),
        )
        for n, text in texts.items()
    )


def _raise(peaks: dict[int, int], lines: NDArray[np.int64], levels: NDArray[np.int64]) -> None:
    """Keeps for each line its highest level."""
    order = np.lexsort((levels, lines))
    lines, levels = lines[order], levels[order]
    last = np.flatnonzero(np.append(lines[1:] != lines[:-1], True)[: len(lines)])
    for line, level in zip(lines[last].tolist(), levels[last].tolist(), strict=True):
        peaks[line] = max(level, peaks.get(line, level))


def _lines_by_stack(moves: Moves, code: CodeType) -> NDArray[np.int64]:
    """The function's line in the stack of each event; 0 where the stack does not show it."""
    stacks, events, rows = moves.trace.stacks, moves.device.events, moves.device.allocations
    names = {code.co_name, getattr(code, "co_qualname", code.co_name)}
    own_lines = {line for _, _, line in code.co_lines() if line is not None}
    flags = np.isin(stacks.frame_line, list(own_lines))
    for column, texts in ((stacks.frame_file, {code.co_filename}), (stacks.frame_function, names)):
        flags &= np.isin(
            column, [text for text in np.unique(column).tolist() if stacks.strings[text] in texts]
        )
    frame = stacks.last_frame(flags)  # the outermost: the call, not what calls itself inside
    line_of_stack = np.append(
        np.where(frame >= 0, stacks.frame_line[frame], 0) if len(frame) else [], 0
    )
    stack = events.stack[: len(moves.delta)]
    line: NDArray[np.int64] = line_of_stack[np.minimum(stack, len(stacks))].astype(np.int64)
    # Where the program records allocations only, a free carries the stack of its allocation: that
    # says nothing.
    freed = np.flatnonzero((rows.free_requested >= 0) & (rows.free_requested < len(line)))
    line[
        rows.free_requested[freed][events.stack[rows.free_requested[freed]] == rows.stack[freed]]
    ] = 0
    return line
