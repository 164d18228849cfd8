"""A call in which memory runs out, of whose result the program then uses some rows only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.expressions.costly_expression import shown
from vramlens.analyses.findings.faults.expressions.uses.expression_uses import MUCH
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.trace import Frame
from vramlens.units import format_size

_ARGUMENTS = r"\((?:(?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)"
_SELECTS = (
    r"(?:(?:\w*_)?(?:mask|valid|keep|kept|chosen|selected|labell?ed|real|active|positions?)"
    r"|[\w.]+\s*(?:[!=]=|[<>]=?)\s*-?[\w.]+)"
)
"""An index that picks some of the rows, each at most once, by its name or as a comparison."""
_PICKED = re.compile(rf"(?P<callee>\b[\w.]+){_ARGUMENTS}\[(?P<index>{_SELECTS})\]")
_PART_PICKED = re.compile(
    rf"(?P<callee>\b[\w.]+){_ARGUMENTS}\[(?P<index>[A-Za-z_]\w*,[^\[\]]+|:[A-Za-z_]\w*)\]"
)
"""One layer, or a range from the first entry on, of what was converted entry by entry; not all but the last."""
_CONVERTED = re.compile(r"^[\w.\[\]]+\.(?:to|float|half|bfloat16|double)\([\w., =]*\)$")
_EACH_PICKED = re.compile(
    rf"\b(?P<each>\w+)\[(?P<index>idx|inds?|indices|mb_\w+|batch_\w+|\w+_idx)\]\s+for\s+(?P=each)\s+in\s+"
    rf"(?P<callee>[\w.]+){_ARGUMENTS}"
)
"""Several results of one call, of each of which a minibatch is used."""
_BY_ROW = re.compile(
    r"@\s*(?:[wW]\b|[\w.]*(?:weight|emb|proj|head|kernel|table))"
    r"|\b(?:linear|log_softmax|softmax|normalize|relu|gelu)\("
)
"""What computes each row by itself: a product with a weight. Of pairs of rows, a mask picks entries."""
_LAYER_BY_ROW = re.compile(r"torch[/\\]nn[/\\]modules[/\\](?:linear|activation|normalization)\.py")
_OF_MODULE = re.compile(r"torch[/\\]nn[/\\]modules[/\\]module\.py")
_ASSIGNED = re.compile(r"^(?P<name>\w+)\s*=(?!=)(?P<value>.+)")
_FLOATS = ("float", "bfloat")


@dataclass(frozen=True, slots=True)
class _Result:
    """What is much of all: the failed request, or the largest tensor in use.

    Attributes:
        frames: of its stack, the innermost first.
        expression: what the program computed in it, as far as that is known.
        size_bytes: of all its rows.
    """

    frames: list[Frame]
    expression: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Pick:
    """Where an index picks rows of a result.

    Attributes:
        maker: the call or the line that computes all of them, in words.
        index: as the program has it.
        place: of the line.
    """

    maker: str
    index: str
    place: Place


@after_failure
def picked_after(scene: Scene) -> Iterator[Finding]:
    """The innermost pick after a call or a line that computed much."""
    picks = ((result, pick) for result in _results(scene) for pick in _picks(scene, result))
    result, pick = next(picks, (None, None))
    if result is None or pick is None:
        return
    yield Finding(
        id="picked_after",
        verdict=Verdict.LIKELY,
        title=f"{pick.maker} computes all rows ({format_size(result.size_bytes)} at once), and"
        f" only those of [{pick.index}] are used",
        bytes=result.size_bytes,
        place=pick.place,
        evidence=("the rows are picked from its result",),
        fix=f"pick the rows first, and compute those alone: put [{pick.index}] on what goes in (on"
        " all that has a row for each) instead of on what comes out: less by as much as the rows"
        " that are left out",
    )


def _results(scene: Scene) -> Iterator[_Result]:
    """Yields the failed request and the largest tensor in use, where they are much of all."""
    request, stacks = scene.ending_request, scene.trace.stacks
    least_bytes = MUCH * scene.wanted_bytes
    if request.size_bytes >= least_bytes:
        yield _Result(stacks.of(request.stack), scene.ending_expression, request.size_bytes)
    allocations, rows = scene.device.allocations, scene.advice_rows
    row = allocations.largest_of(rows) if len(rows) else -1
    if row >= 0 and allocations.requested_bytes[row] >= least_bytes:
        text = scene.source_of(scene.view.place_of_block(row))
        frames = stacks.of(int(allocations.stack[row]))
        yield _Result(frames, text, int(allocations.requested_bytes[row]))


def _picks(scene: Scene, result: _Result) -> Iterator[_Pick]:
    """The picks after the calls in a result's stack, the innermost first."""
    is_by_row, is_converted = _computes_rows(result), bool(_CONVERTED.search(result.expression))
    own_functions = 0
    if is_by_row:
        yield from _picks_in_next_lines(scene, result)
    for inner, outer in pairwise(result.frames):
        own_functions += bool(scene.source_of(inner.place))
        place = outer.place
        text = scene.source_of(place)
        for match in _EACH_PICKED.finditer(text):
            if _enters(match["callee"], inner):
                yield _Pick(f"{match['callee']}()", match["index"], place)
        # A model's rows may depend on each other, as those of a graph do.
        is_told = is_by_row and own_functions <= 1 and inner.function != "forward"
        picks = _PICKED.finditer(text) if is_told else ()
        parts = _PART_PICKED.finditer(text) if own_functions == 1 and is_converted else ()
        for match in (*picks, *parts):
            if _enters(match["callee"], inner, is_own=own_functions == 1):
                yield _Pick(f"{match['callee']}()", match["index"], place)


def _picks_in_next_lines(scene: Scene, result: _Result) -> Iterator[_Pick]:
    """The picks in the lines after the program's innermost one, if these use the result in no other way."""
    innermost = next((frame for frame in result.frames if scene.source_of(frame.place)), None)
    assigned = None if innermost is None else _ASSIGNED.match(scene.source_of(innermost.place))
    if innermost is None or assigned is None:
        return
    place, name, value = innermost.place, assigned["name"], shown(assigned["value"].strip())
    again = rf"(?:return|{name}\s*=)\s*{name}"
    for text in scene.source_below(place):
        pick = re.match(rf"{again}\[(?P<index>{_SELECTS})\]$", text)
        if pick is not None:
            yield _Pick(value, pick["index"], place)
        elif re.match(rf"{again}\[:, -1(?:, :)?\]$", text) and _is_of_positions(scene, result):
            yield _Pick(value, ":, -1", place)
        if text.startswith(("for ", "while ", "def ")) or re.search(rf"\b{name}\b", text):
            return


def _is_of_positions(scene: Scene, result: _Result) -> bool:
    """Whether a result has some numbers for each position of a tensor in use, as a product with a weight that is in
    use has: then its last ones are rows, not columns.
    """
    sizes = set(scene.device.allocations.requested_bytes[scene.advice_rows].tolist())
    for shape in scene.advice_shapes.values():
        if len(shape.sizes) != 3 or shape.sizes[1] < 2 or not shape.type.startswith(_FLOATS):
            continue
        positions_bytes = shape.sizes[0] * shape.sizes[1] * shape.item_bytes
        numbers, remainder = divmod(result.size_bytes, positions_bytes)
        if not remainder and numbers * shape.sizes[2] * shape.item_bytes in sizes:
            return True
    return False


def _computes_rows(result: _Result) -> bool:
    """Whether what made a result computes each row by itself."""
    if result.frames and _LAYER_BY_ROW.search(result.frames[0].file):
        return True
    return _BY_ROW.search(result.expression) is not None


def _enters(callee: str, inner: Frame, *, is_own: bool = True) -> bool:
    """Whether a call of that name entered a frame: the program's own function, or a module."""
    if _OF_MODULE.search(inner.file):
        return not is_own
    return callee.rpartition(".")[2] == inner.function
