"""Experts that all compute every row, although a router picks a few of them for each."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.expressions.costly_expression import shown
from vramlens.analyses.scene import Scene
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_EACH_OF_ALL = re.compile(r"\b(?P<expert>\w+)\((?P<rows>[\w.]+)\)\s+for\s+(?P=expert)\s+in\b")
"""``[expert(tokens) for expert in self.experts]``: each gets the same rows."""
_PICKS = re.compile(r"\.gather\(|\btopk\(|\btake_along_dim\(")
_LEAST_SHARE = 0.4
_LONGEST_FUNCTION = 40
"""Lines: one of the same name that is farther away is another class's."""


def idle_experts(scene: Scene) -> Iterator[Finding]:
    """The activations of calls that all compute the same rows, when memory runs out, if they are much of
    all and the function picks from their results.
    """
    failure = scene.ending_failure
    if failure is None:
        return
    places = {line: _place(scene, *line) for line in failure.source}
    picking = [place for line, place in places.items() if _PICKS.search(failure.source[line])]
    for line, place in places.items():
        call = _EACH_OF_ALL.search(failure.source[line])
        if call is None or place is None or not any(_is_beside(place, other) for other in picking):
            continue
        frames = _frames(scene, *line)
        rows = _activations_through(scene, frames)
        size_bytes = scene.bytes_of(rows)
        if size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
            continue
        yield Finding(
            id="idle_experts",
            verdict=Verdict.LIKELY,
            title=f"each {call['expert']} computes all of {call['rows']}, and another line picks"
            f" from the results: {scene.part_of_heap(size_bytes)} of activations",
            bytes=size_bytes,
            place=place,
            evidence=(f"the line is {shown(failure.source[line])}",),
            fix=f"if a router chooses a few for each row, give each {call['expert']} the rows that"
            f" are its own, {call['expert']}({call['rows']}[mask]), and add up the results with"
            f" index_add (up to {format_size(size_bytes)} less)",
            extent=scene.extent(rows),
        )
        return


def _place(scene: Scene, file: str, line: int) -> Place | None:
    """A line with its function; None where no stack goes through it."""
    frames = _frames(scene, file, line)
    return scene.view.place(frames[0]) if frames else None


def _is_beside(place: Place, other: Place | None) -> bool:
    """Whether another line is of the same function, as far as its name and the distance tell."""
    if other is None or (place.file, place.function) != (other.file, other.function):
        return False
    return abs(place.line - other.line) <= _LONGEST_FUNCTION


def _frames(scene: Scene, file: str, line: int) -> list[int]:
    """The ids of all frames at a line."""
    stacks = scene.view.trace.stacks
    at_line = np.flatnonzero(stacks.frame_line == line).tolist()
    return [frame for frame in at_line if stacks.frame(frame).file == file]


def _activations_through(scene: Scene, frames: list[int]) -> NDArray[np.int64]:
    """The activations whose stacks go through some frames."""
    stacks = scene.view.trace.stacks
    flags = np.zeros(len(stacks.frame_line), np.bool_)
    flags[frames] = True
    rows = scene.advice_rows
    rows = rows[scene.view.categories.category[rows] == Category.ACTIVATIONS]
    return np.asarray(rows[stacks.through(flags, scene.device.allocations.stack[rows])])
