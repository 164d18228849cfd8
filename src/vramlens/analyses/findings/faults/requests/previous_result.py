"""A result that a name still has while the next one is made: both are in use until then."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from vramlens.analyses.attribution.names import IN_CALL
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.requests.current_call import begin_of_call
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK, Frame
from vramlens.units import format_size

_ASSIGNED = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)\s*(?::\s*[\w.\[\], |]+)?=(?!=)\s*(?P<value>.+)")
_LEAST_SHARE = 0.1
"""Of what is in use, with the failed request."""
_MAKERS_OF_OBJECTS = frozenset({"__init__", "__new__", "__post_init__", "__setstate__"})
"""What an object gets there had no value before."""


class _Earlier(NamedTuple):
    """A statement that computes the value of a name anew, and what the name has so far.

    Attributes:
        name: as the program has it.
        place: of the statement.
        row: the allocation of what it has.
        verdict: how sure it is that this name has it.
    """

    name: str
    place: Place
    row: int
    verdict: Verdict


@after_failure
def previous_result(scene: Scene) -> Iterator[Finding]:
    """The result of the same statement the time before, if a request for the next one failed."""
    earlier = next(_earlier_values(scene), None)
    if earlier is None:
        return
    rows = np.array([earlier.row], np.int64)
    size_bytes = scene.bytes_of(rows)
    yield Finding(
        id="previous_result",
        verdict=earlier.verdict,
        title=f"{earlier.name} still has its earlier value, {scene.part_of_heap(size_bytes)},"
        " while the next one is made",
        bytes=size_bytes,
        place=earlier.place,
        evidence=(
            "Python frees the old value only after the new one is complete",
            f"{scene.view.names.name(earlier.row)} was made by this line the time before",
        ),
        fix=f"unless something uses it until then, put {earlier.name} = None before this line, or"
        f" have the new one written into it (out=): {format_size(size_bytes)} less",
        extent=scene.extent(rows),
    )


def _earlier_values(scene: Scene) -> Iterator[_Earlier]:
    """Yields what the assignments that the failed request was made for have so far, the
    outermost first.
    """
    frames = scene.trace.stacks.of(scene.ending_request.stack)
    candidates = _large_tensors(scene)
    for depth in range(len(frames) - 1, -1, -1) if len(candidates) else ():
        frame = frames[depth]
        text = scene.source_of(frame.place)
        assigned = _ASSIGNED.match(text)
        if assigned is None or not _may_be_dropped(scene, frames[: depth + 1], assigned):
            continue
        rows = [
            row for row in candidates if _frames_of(scene, row)[: depth + 1] == frames[: depth + 1]
        ]
        if len(rows) != 1 or scene.device.allocations.born[rows[0]] >= begin_of_call(scene, frame):
            continue
        if _is_of(assigned, frame, scene.view.names.name(rows[0])):
            verdict = _verdict(scene, rows[0], frames)
            yield _Earlier(assigned["name"], frame.place, rows[0], verdict)


def _large_tensors(scene: Scene) -> list[int]:
    """The tensors that the program keeps, and that are much of what is in use."""
    allocations, rows = scene.device.allocations, scene.program_rows
    is_large = allocations.requested_bytes[rows] >= _LEAST_SHARE * scene.wanted_bytes
    return list(rows[is_large & (allocations.stack[rows] != NO_STACK)].tolist())


def _frames_of(scene: Scene, row: int) -> list[Frame]:
    return scene.trace.stacks.of(int(scene.device.allocations.stack[row]))


def _may_be_dropped(scene: Scene, frames: Sequence[Frame], assigned: re.Match[str]) -> bool:
    """Whether a name had a value before the statement in the outermost of some frames, which neither
    that nor what it calls uses, the line above does not drop, and those below keep nowhere else.
    """
    frame, name = frames[-1], re.escape(assigned["name"])
    if frame.function in _MAKERS_OF_OBJECTS:
        return False
    used = [assigned["value"]]
    if "." in assigned["name"]:
        used += [scene.source_of(inner.place) for inner in frames[:-1]]
    drops = re.compile(rf"^{name}\s*=\s*None\b|^del\b.*\b{name}\b")
    keeps = re.compile(rf"\.(?:append|add|put|insert|extend)\(.*\b{name}\b|=\s*{name}\s*$")
    return not (
        any(_uses(text, assigned["name"]) for text in used)
        or any(map(drops.search, scene.source_above(frame.place)))
        or any(map(keeps.search, scene.source_below(frame.place)))
    )


def _is_of(assigned: re.Match[str], frame: Frame, tensor: str) -> bool:
    """Whether a tensor is the value of a name, or belongs to an object of a class that the statement
    makes. An attribute is no variable of the same name, which may be that of another call.
    """
    holder, _, own_name = assigned["name"].rpartition(".")
    if re.search(rf"\b{re.escape(_class_of(tensor))}[.(]", assigned["value"]):
        return True
    if holder:
        return re.search(rf"\.{re.escape(own_name)}(?:[.\[]|$)", tensor) is not None
    return tensor == own_name or tensor.startswith(f"{IN_CALL}{frame.function}()")


def _class_of(tensor: str) -> str:
    """The class that the name of a tensor begins with; what no text has where it begins otherwise."""
    first = re.match(r"[A-Z]\w*(?=[.\[])", tensor)
    return first[0] if first is not None else "\0"


def _verdict(scene: Scene, row: int, frames: list[Frame]) -> Verdict:
    """Likely where the same call made both, or in another step: objects beside each other are made by
    one line, too.
    """
    view = scene.view
    steps = view.steps.of(np.array([scene.advice_event]))
    is_of_earlier_step = 0 <= int(view.step[row]) < int(steps[0])
    is_of_call = _frames_of(scene, row) == frames
    return Verdict.LIKELY if is_of_earlier_step or is_of_call else Verdict.POSSIBLE


def _uses(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text) is not None
