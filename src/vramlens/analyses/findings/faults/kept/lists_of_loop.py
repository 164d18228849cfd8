"""Lists that a loop fills, one entry a turn, where it goes on for more turns than ever before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.requests.current_call import begin_of_call
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK, Frame
from vramlens.units import counted, format_size

_ENTRY = re.compile(r"^(?:list|deque)\[(?P<number>\d+)\]")
_FEWEST_TURNS = 16
_LEAST_SHARE = 0.25
"""Of what is in use."""


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop that fills lists in a call that runs.

    Attributes:
        function: whose call it is.
        rows: the entries.
        turns: of this call.
        earlier_turns: the most of an earlier call; 0 where there was none.
    """

    function: str
    rows: NDArray[np.int64]
    turns: int
    earlier_turns: int


@after_failure
def lists_of_loop(scene: Scene) -> Iterator[Finding]:
    """The lists of the innermost call whose loop went farther than in all calls before, if they are much."""
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
        place=scene.view.place_of_block(int(loop.rows[-1])),
        evidence=(f"no call before had more than {loop.earlier_turns} turns",),
        fix="look at what ends the loop: a bound on an error must be relative to what the error is"
        " of (residual < tolerance * b.norm()), or rounding alone keeps it above; or keep the last"
        f" few entries only, as a solver that restarts does (up to {format_size(size_bytes)} less)",
        extent=scene.extent(loop.rows),
        recurs=True,
    )


def _loops(scene: Scene) -> Iterator[_Loop]:
    """Yields the loops of the calls that the failed request was made in, the innermost first."""
    frames = scene.trace.stacks.of(scene.ending_request.stack)
    names = scene.view.names
    entries = [row for row in scene.program_rows.tolist() if _ENTRY.match(names.name(row))]
    rows = np.array(entries, np.int64)
    for inner, outer in pairwise(frames):
        begin = begin_of_call(scene, outer) if len(rows) else -1
        own = rows[scene.device.allocations.born[rows] > begin]
        own = own[_is_of_function(scene, own, inner)]
        is_much = scene.bytes_of(own) >= _LEAST_SHARE * scene.advice_heap.requested_bytes
        if not len(own) or not is_much:
            continue
        numbers = {_ENTRY.match(names.name(row))["number"] for row in own.tolist()}  # type: ignore[index]
        earlier = _most_in_earlier_call(scene, own, outer, begin) * len(numbers) // len(own)
        if len(numbers) >= _FEWEST_TURNS and len(numbers) > earlier > 0:
            yield _Loop(inner.function, own, len(numbers), earlier)


def _is_of_function(scene: Scene, rows: NDArray[np.int64], frame: Frame) -> NDArray[np.bool_]:
    """Whether lines of a frame's function made each."""
    places = map(scene.view.place_of_block, rows.tolist())
    return np.array(
        [
            place is not None and (place.file, place.function) == (frame.file, frame.function)
            for place in places
        ],
        np.bool_,
    )


def _most_in_earlier_call(scene: Scene, rows: NDArray[np.int64], frame: Frame, begin: int) -> int:
    """How many requests as those of some entries an earlier call of a line made at most."""
    allocations, stacks = scene.device.allocations, scene.trace.stacks
    made_by = np.unique(allocations.stack[rows])
    known = np.flatnonzero((allocations.born >= 0) & (allocations.stack != NO_STACK))
    known = known[(allocations.born[known] <= begin)]
    known = known[np.argsort(allocations.born[known])]
    is_own = np.array([stacks.frame(number) == frame for number in range(len(stacks.frame_line))])
    is_in_call = stacks.through(is_own, allocations.stack[known])
    call = np.cumsum(np.diff(is_in_call.astype(np.int8), prepend=0) > 0)
    is_alike = is_in_call & np.isin(allocations.stack[known], made_by)
    return int(np.bincount(call[is_alike], minlength=1).max())
