"""A list of all that a generator makes, where one at a time would do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.expressions.costly_expression import shown
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import Frame
from vramlens.units import counted, format_size

_LISTED = re.compile(r"\b(?:list|tuple|sorted)\(\s*(?:[\w.]+\.)?(?P<maker>\w+)\(")
"""``list(batches(…))``."""
_FEWEST = 8
"""Tensors: a few may be what a step needs at once."""
_LEAST_SHARE = 0.4
"""Of what is in use."""


@after_failure
def listed_batches(scene: Scene) -> Iterator[Finding]:
    """What a generator has made for a list when memory runs out for the next."""
    frames = scene.trace.stacks.of(scene.ending_request.stack)
    for inner, outer in pairwise(frames):  # the innermost first
        place = outer.place
        statement = scene.source_of(place)
        listed = _LISTED.search(statement)
        if listed is None or inner.function != listed["maker"]:
            continue
        if not _is_generator(scene, inner.function):
            continue
        rows = _made_under(scene, outer)
        size_bytes = scene.bytes_of(rows)
        is_much = size_bytes >= _LEAST_SHARE * scene.advice_heap.requested_bytes
        if len(rows) < _FEWEST or not is_much:
            continue
        yield Finding(
            id="listed_batches",
            verdict=Verdict.LIKELY,
            title=f"{shown(statement)} makes all there is before any of it is used:"
            f" {scene.part_of_heap(size_bytes)} so far, in {counted(len(rows), 'tensor')}",
            bytes=size_bytes,
            place=place,
            evidence=("memory ran out in it",),
            fix=f"go through {listed['maker']}(…) itself: for entry in {listed['maker']}(…), which"
            " makes one at a time; compute the number of entries, if it is needed, or keep them on"
            f" the CPU (up to {format_size(size_bytes)} less)",
            extent=scene.extent(rows),
            recurs=True,
        )
        return


def _is_generator(scene: Scene, function: str) -> bool:
    """Whether a function that runs is a generator: the variables of its call have names that say so."""
    names = map(scene.view.names.name, scene.advice_rows.tolist())
    return any(name.startswith(f"local of generator {function}()") for name in names)


def _made_under(scene: Scene, frame: Frame) -> NDArray[np.int64]:
    """What is alive of all that a line's calls made."""
    stacks, rows = scene.trace.stacks, scene.advice_rows
    stack_numbers = scene.device.allocations.stack[rows]
    through = [
        number
        for number in np.unique(stack_numbers[stack_numbers < len(stacks)]).tolist()
        if frame in stacks.of(number)
    ]
    return rows[np.isin(stack_numbers, through)]
