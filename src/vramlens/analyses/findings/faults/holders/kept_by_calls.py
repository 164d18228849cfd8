"""Variables of calls that have ended, or wait: what a kept exception, or a generator, holds on to."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import counted, format_size

_LOCAL = re.compile(
    r"^local of (?P<kind>generator |coroutine )?(?P<function>[\w.<>]+)\(\)(?:, call (?P<number>\d+))?(?:[.\[]|$)"
)
"""``local of score()``, ``local of generator batches(), call 2``, and what a variable leads to: ``local of score()[3]``
(capture/names/holder_names.py).
"""
_COROUTINE, _GENERATOR = "coroutine ", "generator "
_LEAST_SHARE = 0.25
"""Of what is in use: with less, the calls that run hold more."""
_FEWEST_CALLS = 2
"""Beside those that run where the request failed."""
_LIKELY_CALLS = 6
"""Fewer may be calls of other threads, unless each began when the one before had made all of its own."""
_LIKELY_IN_SEQUENCE = 3


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls of one function whose variables hold memory.

    Attributes:
        function: its name.
        are_generators: whether they are generators, which wait for their next step.
        rows: what they hold.
        number: how many there are.
        size_bytes: of all that they hold.
        are_in_sequence: whether each but the latest began when the one before had made all that it holds.
    """

    function: str
    are_generators: bool
    rows: NDArray[np.int64]
    number: int
    size_bytes: int
    are_in_sequence: bool


@after_failure
def kept_by_calls(scene: Scene) -> Iterator[Finding]:
    """The function whose calls keep the most when memory runs out, if that is much of all and most of
    these calls do not run. Coroutines that wait are the requests of a server.
    """
    running_frames = scene.trace.stacks.of(scene.ending_request.stack)
    calls = max(_all_calls(scene), key=lambda calls: calls.size_bytes, default=None)
    if calls is None:
        return
    running = sum(frame.function == calls.function for frame in running_frames)
    if not running_frames:  # in a backward pass nobody knows which of them waits for it
        running = 1
    is_much = calls.size_bytes >= _LEAST_SHARE * scene.advice_heap.requested_bytes
    if not is_much or calls.number - running < _FEWEST_CALLS:
        return
    held = scene.part_of_heap(calls.size_bytes)
    fewest = _LIKELY_IN_SEQUENCE if calls.are_in_sequence else _LIKELY_CALLS
    if not running_frames and not calls.are_in_sequence:  # they may all run, in threads
        fewest = calls.number
    yield Finding(
        id="kept_by_calls",
        verdict=Verdict.LIKELY if calls.number - running >= fewest else Verdict.POSSIBLE,
        title=f"variables of {counted(calls.number, 'call')} of {calls.function}() hold {held}:"
        f" {running:,} of these calls runs where the request failed",
        bytes=calls.size_bytes,
        place=scene.view.place_of_block(int(calls.rows[-1])),
        evidence=(_why_kept(calls),),
        fix=f"{_remedy(calls)} (up to {format_size(calls.size_bytes)} less)",
        extent=scene.extent(calls.rows),
    )


def _why_kept(calls: _Calls) -> str:
    if calls.are_generators:
        return "a generator that is not at its end keeps its variables"
    return "an exception that is kept keeps the variables of all calls that it passed through"


def _remedy(calls: _Calls) -> str:
    if calls.are_generators:
        return f"go through each {calls.function}() to its end, or call its close()"
    return "keep str(error), and type(error).__name__ where its name is used, instead of the exception itself"


def _all_calls(scene: Scene) -> Iterator[_Calls]:
    """Yields the calls of each function that hold memory."""
    names = scene.view.names
    functions: defaultdict[tuple[str, str], defaultdict[str | None, list[int]]]
    functions = defaultdict(lambda: defaultdict(list))
    for row in scene.program_rows.tolist():
        local = _LOCAL.match(names.name(row))
        if local is not None and local["kind"] != _COROUTINE:
            functions[local["kind"], local["function"]][local["number"]].append(row)
    for (kind, function), rows_by_call in functions.items():
        rows = np.array(sorted(chain.from_iterable(rows_by_call.values())), np.int64)
        yield _Calls(
            function=function,
            are_generators=kind == _GENERATOR,
            rows=rows,
            number=len(rows_by_call),
            size_bytes=scene.bytes_of(rows),
            are_in_sequence=_are_in_sequence(rows_by_call.values()),
        )


def _are_in_sequence(calls: Iterable[list[int]]) -> bool:
    """Whether the rows of each call, which are in the order of their births, lie between those of others;
    the latest aside, which runs, and may be named for what all of them share.
    """
    spans = sorted((max(rows), min(rows)) for rows in calls)[:-1]
    return all(end < begin for (end, _), (_, begin) in pairwise(spans))
