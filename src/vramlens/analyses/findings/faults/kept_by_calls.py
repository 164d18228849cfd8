"""Variables of calls that have ended: what a kept exception, or a generator, holds on to."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.usage import part_of_heap
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.units import counted, format_size

_LOCAL = re.compile(r"^local of (?P<call>[\w.<>]+\(\))$")
_LEAST_SHARE = 0.25
_FEWEST_CALLS, _LIKELY_CALLS = 2, 6
"""Calls of one function beside those that run: fewer may be those of other threads."""


def kept_by_calls(scene: Scene) -> Iterator[Finding]:
    """The function whose calls keep the most when memory runs out, if that is much of all and most of
    these calls do not run.
    """
    request = scene.ending_request
    if request is None:
        return
    heap, running_frames = scene.advice_heap, scene.trace.stacks.of(request.stack)
    for call, rows in _variables(scene).items():
        size_bytes = int(scene.device.allocations.requested_bytes[rows].sum())
        name = call.removesuffix("()").rpartition(".")[2]
        running = sum(frame.function == name for frame in running_frames)
        calls = _most_at_one_line(scene, rows)
        is_much = size_bytes >= _LEAST_SHARE * heap.requested_bytes
        if not is_much or calls - running < _FEWEST_CALLS:
            continue
        yield Finding(
            id="kept_by_calls",
            verdict=Verdict.LIKELY if calls - running >= _LIKELY_CALLS else Verdict.POSSIBLE,
            title=f"variables of {call} hold {part_of_heap(size_bytes, heap)}, of"
            f" {counted(calls, 'call')} at least: {running:,} of them runs where the request failed",
            bytes=size_bytes,
            place=scene.view.place_of_block(int(rows[-1])),
            evidence=(
                "an exception that is kept keeps the variables of all calls that it passed through"
                " (its traceback); so does a generator that is not at its end",
            ),
            fix="keep str(error), or error.with_traceback(None), instead of the exception"
            f" (up to {format_size(size_bytes)} less)",
            extent=Extent(scene.advice_event, rows),
        )
        return


def _variables(scene: Scene) -> dict[str, NDArray[np.int64]]:
    """What variables of functions hold, by function, the most first."""
    by_call: defaultdict[str, list[int]] = defaultdict(list)
    names = scene.view.names
    for row in scene.program_rows.tolist():
        local = _LOCAL.match(names.name(row))
        if local is not None:
            by_call[local["call"]].append(row)
    sizes = scene.device.allocations.requested_bytes
    rows_of = {call: np.array(rows, np.int64) for call, rows in by_call.items()}
    most_first = sorted(rows_of, key=lambda call: -int(sizes[rows_of[call]].sum()))
    return {call: rows_of[call] for call in most_first}


def _most_at_one_line(scene: Scene, rows: NDArray[np.int64]) -> int:
    """How many of these one line made, at most: each call makes some there."""
    _, counts = np.unique(scene.view.phases.frame[rows], return_counts=True)
    return int(counts.max(initial=0))
