"""A call in which memory runs out, of whose result the program then uses some rows only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.requests.expression_uses import MUCH
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.trace import Frame
from vramlens.units import format_size

_ARGUMENTS = r"\((?:(?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)"
_INDEX = r"\[(?P<index>(?!\s*(?:None\b|-?\d+\s*\]|\.\.\.|[\"']|(?:\w|key|name)\]))[^\[\]:]+)\]"
"""Rows that a tensor picks: a slice and a number are views, and a key is no row."""
_PICKED = re.compile(rf"(?P<callee>\b[\w.]+){_ARGUMENTS}{_INDEX}")
_EACH_PICKED = re.compile(
    rf"\b(?P<each>\w+){_INDEX}\s+for\s+(?P=each)\s+in\s+(?P<callee>[\w.]+){_ARGUMENTS}"
)
_BY_ROW = re.compile(r"@|\b(?:linear|matmul|mm|log_softmax|softmax|normalize|relu|gelu)\(")
"""What computes each row by itself."""
_LAYER_BY_ROW = re.compile(r"torch[/\\]nn[/\\]modules[/\\](?:linear|activation|normalization)\.py")
_OF_MODULE = re.compile(r"torch[/\\]nn[/\\]modules[/\\]module\.py")


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of whose result an index picks rows."""

    name: str
    index: str
    place: Place


@after_failure
def picked_after(scene: Scene) -> Iterator[Finding]:
    """The innermost such call in the stack of the failed request, if that asked for much."""
    request = scene.ending_request
    if request is None or request.size_bytes < MUCH * scene.wanted_bytes:
        return
    frames = scene.trace.stacks.of(request.stack)
    call = next(_picked_calls(scene, frames), None)
    if call is None:
        return
    size = format_size(request.size_bytes)
    yield Finding(
        id="picked_after",
        verdict=Verdict.LIKELY,
        title=f"{call.name}() computes all rows, and those of [{call.index}] are picked from its result:"
        f" {size} at once",
        bytes=request.size_bytes,
        place=call.place,
        evidence=("memory ran out in that call",),
        fix=f"pick the rows first, and compute those alone: in what {call.name}() is given, x[{call.index}]"
        f" instead of x (up to {size} less)",
    )


def _picked_calls(scene: Scene, frames: Sequence[Frame]) -> Iterator[_Call]:
    """The calls in a stack, the innermost first, whose rows can be picked before."""
    is_by_row = _computes_rows(scene, frames)
    own_functions = 0
    for inner, outer in pairwise(frames):
        own_functions += bool(scene.source_of(_place_of(inner)))
        place = _place_of(outer)
        text = scene.source_of(place)
        for match in _EACH_PICKED.finditer(text):
            if _enters(match["callee"], inner):
                yield _Call(match["callee"], match["index"].strip(), place)
        # A model's rows may depend on each other, as those of a graph do.
        if is_by_row and own_functions <= 1 and inner.function != "forward":
            for match in _PICKED.finditer(text):
                if _enters(match["callee"], inner, is_own=own_functions == 1):
                    yield _Call(match["callee"], match["index"].strip(), place)


def _place_of(frame: Frame) -> Place:
    return Place(frame.file, frame.line, frame.function)


def _computes_rows(scene: Scene, frames: Sequence[Frame]) -> bool:
    """Whether what failed computes each row by itself."""
    if frames and _LAYER_BY_ROW.search(frames[0].file):
        return True
    return _BY_ROW.search(scene.ending_expression) is not None


def _enters(callee: str, inner: Frame, *, is_own: bool = True) -> bool:
    """Whether a call of that name entered a frame: the program's own function, or a module."""
    if _OF_MODULE.search(inner.file):
        return not is_own
    return callee.rpartition(".")[2] == inner.function
