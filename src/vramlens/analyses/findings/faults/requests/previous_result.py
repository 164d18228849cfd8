"""A result that a name still has while the next one is computed: both are in use until it is assigned."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK, Frame
from vramlens.units import format_size

_ASSIGNED = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)\s*=(?!=)\s*(?P<value>.+)")
_LEAST_SHARE = 0.1
"""Of what is in use, with the failed request."""


class _Assignment(NamedTuple):
    """A statement that computes the value of a name anew, and the earlier value of it.

    Attributes:
        name, value: as the program has them.
        place: of the statement.
        row: the earlier value's allocation.
    """

    name: str
    value: str
    place: Place
    row: int


@after_failure
def previous_result(scene: Scene) -> Iterator[Finding]:
    """The result of the same statement the time before, if it is large, and a request for the next one failed."""
    assignment = next(_assignments(scene), None)
    if assignment is None:
        return
    name, row = assignment.name, assignment.row
    size_bytes = int(scene.device.allocations.requested_bytes[row])
    rows = np.array([row], np.int64)
    yield Finding(
        id="previous_result",
        verdict=Verdict.LIKELY,
        title=f"{name} still has its earlier value, {scene.part_of_heap(size_bytes)}, while the"
        " next one is made",
        bytes=size_bytes,
        place=assignment.place,
        evidence=(
            "a name keeps what it has until the call on the right of the assignment has ended",
            f"{scene.view.names.name(row)} came from the same line",
        ),
        fix=f"unless that call uses it, put {name} = None before this line, or write into the"
        f" tensor that is there (out=, copy_()): {format_size(size_bytes)} less",
        extent=scene.extent(rows),
    )


def _assignments(scene: Scene) -> Iterator[_Assignment]:
    """Yields the statements that the failed request was made for, the innermost first, with their earlier value."""
    frames = scene.trace.stacks.of(scene.ending_request.stack)
    for depth, frame in enumerate(frames):
        assigned = _ASSIGNED.match(scene.source_of(frame.place))
        if assigned is None or _uses(assigned["value"], assigned["name"]):
            continue
        rows = _earlier_values(scene, frames[: depth + 1])
        if len(rows) == 1 and _is_of(assigned, scene.view.names.name(rows[0])):
            yield _Assignment(assigned["name"], assigned["value"], frame.place, rows[0])


def _earlier_values(scene: Scene, frames: Sequence[Frame]) -> list[int]:
    """The large tensors of the program that earlier calls of these frames asked for, at the same line."""
    allocations, stacks = scene.device.allocations, scene.trace.stacks
    least_bytes = _LEAST_SHARE * scene.wanted_bytes
    rows = np.intersect1d(
        scene.program_rows, np.flatnonzero(allocations.born < _begin_of_call(scene, frames[-1]))
    )
    rows = rows[
        (allocations.requested_bytes[rows] >= least_bytes) & (allocations.stack[rows] != NO_STACK)
    ]
    return [
        row
        for row in rows.tolist()
        if stacks.of(int(allocations.stack[row]))[: len(frames)] == list(frames)
    ]


def _begin_of_call(scene: Scene, frame: Frame) -> int:
    """The event since which all requests were made in a line's call."""
    allocations, stacks = scene.device.allocations, scene.trace.stacks
    is_in_call = np.array([frame in stacks.of(stack) for stack in range(len(stacks))], np.bool_)
    before = np.flatnonzero(
        (allocations.born < scene.advice_event) & (allocations.stack != NO_STACK)
    )
    outside = before[~is_in_call[allocations.stack[before]]]
    return int(allocations.born[outside].max(initial=-1))


def _is_of(assigned: re.Match[str], tensor: str) -> bool:
    """Whether a tensor is the value of a name, or belongs to an object of a class that the statement makes. An
    attribute is no variable of the same name, which may be that of another call.
    """
    holder, _, own_name = assigned["name"].rpartition(".")
    is_of_name = bool(holder) == ("." in tensor) and _uses(tensor, own_name)
    return is_of_name or _uses(assigned["value"], re.split(r"[.\[]", tensor, maxsplit=1)[0])


def _uses(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None
