"""Lists that a solver's loop fills, one entry a turn, where it goes on for more turns than ever before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.requests.current_call import begin_of_call, flags_of_frame
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK, Frame
from vramlens.units import counted, format_size

_ENTRY = re.compile(r"^(?:list|deque)\[(?P<number>\d+)\]")
_CONVERGES = re.compile(
    r"^(?:el)?(?:if|while)\b.*[<>].*\b(?:\w*tol(?:erance)?|eps\w*|\w*threshold|1e-\d+)\b"
    r"|^(?:el)?(?:if|while)\b.*\b(?:res|resid\w*|\w*norm\w*|err\w*|delta|gap)\b.*[<>]"
)
"""A line that ends a loop once an error is small: of other loops the data say how long they are."""
_FEWEST_TURNS = 16
_LEAST_SHARE = 0.25
"""Of what is in use."""


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop that fills lists in a call that runs.

    Attributes:
        function: whose call it is.
        rows: the entries.
        end: the line that ends it.
        turns: of this call.
        earlier_turns: the most of an earlier call.
    """

    function: str
    rows: NDArray[np.int64]
    end: Place
    turns: int
    earlier_turns: int


@after_failure
def lists_of_loop(scene: Scene) -> Iterator[Finding]:
    """The lists of a solver whose loop went farther than in all calls before, if they are much."""
    loop = next(_loops(scene), None)
    if loop is None:
        return
    size_bytes = scene.bytes_of(loop.rows)
    yield Finding(
        id="lists_of_loop",
        verdict=Verdict.LIKELY,
        title=f"{counted(len(loop.rows), 'tensor')} in lists that this call of {loop.function}()"
        f" fills hold {scene.part_of_heap(size_bytes)}, some for each of {loop.turns} turns of its"
        " loop",
        bytes=size_bytes,
        place=loop.end,
        evidence=(f"no call before had more than {loop.earlier_turns} turns",),
        fix="look at what ends the loop: a bound on an error must be relative to what the error is"
        " of (residual < tolerance * b.norm()), or rounding alone keeps it above; or keep the last"
        f" few entries only, as a solver that restarts does (up to {format_size(size_bytes)} less)",
        extent=scene.extent(loop.rows),
        recurs=True,
    )


def _loops(scene: Scene) -> Iterator[_Loop]:
    """Yields the solvers' loops that the failed request was made in, the innermost first."""
    entries = _entries_by_function(scene)
    frames = scene.trace.stacks.of(scene.ending_request.stack) if entries else []
    for inner, outer in pairwise(frames):
        rows = entries.pop((inner.file, inner.function), None)
        end = None if rows is None else _end_by_error(scene, inner.place)
        if rows is None or end is None:
            continue
        begin = begin_of_call(scene, outer)
        loop_rows = rows[scene.device.allocations.born[rows] > begin]
        turns = len({_number(scene, row) for row in loop_rows.tolist()})
        is_much = scene.bytes_of(loop_rows) >= _LEAST_SHARE * scene.advice_heap.requested_bytes
        if turns < _FEWEST_TURNS or not is_much:
            continue
        earlier = _most_in_earlier_call(scene, loop_rows, outer, begin) * turns // len(loop_rows)
        if turns > earlier > 0:
            yield _Loop(inner.function, loop_rows, end, turns, earlier)


def _entries_by_function(scene: Scene) -> dict[tuple[str, str], NDArray[np.int64]]:
    """The entries of lists that nobody is known to hold, by the file and name of the function that made them."""
    names, view = scene.view.names, scene.view
    rows = [row for row in scene.program_rows.tolist() if _ENTRY.match(names.name(row))]
    entries: dict[tuple[str, str], list[int]] = {}
    for row, frame in zip(rows, view.phases.frame[rows].tolist(), strict=True):
        place = view.place(frame)
        if place is not None:
            entries.setdefault((place.file, place.function), []).append(row)
    return {function: np.array(its_rows, np.int64) for function, its_rows in entries.items()}


def _number(scene: Scene, row: int) -> str:
    entry = _ENTRY.match(scene.view.names.name(row))
    return "" if entry is None else entry["number"]


def _end_by_error(scene: Scene, place: Place) -> Place | None:
    """The line around one that ends a loop once an error is small; None without one."""
    above = reversed(list(scene.lines_above(place)))
    lines = (*above, place, *scene.lines_below(place))
    return next((line for line in lines if _CONVERGES.search(scene.source_of(line))), None)


def _most_in_earlier_call(scene: Scene, rows: NDArray[np.int64], frame: Frame, begin: int) -> int:
    """How many requests as those of some entries an earlier call of a line made at most. The first call may be
    cut short by the recording's begin; other threads go on meanwhile.
    """
    allocations, stacks = scene.device.allocations, scene.trace.stacks
    outermost = stacks.of(scene.ending_request.stack)[-1]
    earlier_rows = np.flatnonzero((allocations.born >= 0) & (allocations.stack != NO_STACK))
    earlier_rows = earlier_rows[allocations.born[earlier_rows] <= begin]
    is_of_thread = stacks.through(flags_of_frame(scene, outermost), allocations.stack[earlier_rows])
    earlier_rows = earlier_rows[is_of_thread]
    earlier_rows = earlier_rows[np.argsort(allocations.born[earlier_rows])]
    is_in_call = stacks.through(flags_of_frame(scene, frame), allocations.stack[earlier_rows])
    call = np.cumsum(np.diff(is_in_call.astype(np.int8), prepend=1) > 0)
    is_alike = is_in_call & np.isin(
        allocations.stack[earlier_rows], np.unique(allocations.stack[rows])
    )
    return int(np.bincount(call[is_alike & (call > 0)], minlength=1).max())
