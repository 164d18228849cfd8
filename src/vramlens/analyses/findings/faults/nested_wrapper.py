"""A function that makes several copies of what it is given, and runs inside of itself: they multiply."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_COPIES = re.compile(
    r"\b(?:cat|concat|stack|vstack|tile)\(|\.(?:repeat|repeat_interleave|expand)\("
)
_LEAST_SHARE = 0.3
"""Of what is in use, with the request that failed."""


@after_failure
def nested_wrapper(scene: Scene) -> Iterator[Finding]:
    """What the failed pass made of copies of copies, if one line made both in calls that lie in each other."""
    place = _line_inside_itself(scene)
    if place is None:
        return
    outer, inner = _copies(scene, place)
    if inner < 0:
        return
    allocations = scene.device.allocations
    sizes = allocations.requested_bytes
    times = int(sizes[inner]) // int(sizes[outer])
    rows = scene.advice_rows[allocations.born[scene.advice_rows] >= allocations.born[inner]]
    made_bytes = scene.bytes_of(rows) + scene.ending_request.size_bytes
    if made_bytes < _LEAST_SHARE * scene.wanted_bytes:
        return
    saved_bytes = made_bytes - made_bytes // times
    yield Finding(
        id="nested_wrapper",
        verdict=Verdict.LIKELY,
        title=f"{place.function}() runs inside of itself, and puts {times}"
        f" of each input together both times: {times * times} in all",
        bytes=saved_bytes,
        place=place,
        evidence=(
            f"its outer call put together {format_size(int(sizes[outer]))}, and its inner one"
            f" {format_size(int(sizes[inner]))} of that",
        ),
        fix="wrap the model once: where both add the same augmentations, the inner ones repeat the"
        " outer ones (look for a default argument, or a function that wraps what it makes):"
        f" about {format_size(saved_bytes)} less",
        extent=scene.extent(rows),
    )


def _line_inside_itself(scene: Scene) -> Place | None:
    """The line that the failed request's stack passes through twice, and that puts tensors together."""
    frames = scene.trace.stacks.of(scene.ending_request.stack)
    passages = Counter(frame.place for frame in frames)
    return next(
        (
            place
            for place, count in passages.items()
            if count > 1 and _COPIES.search(scene.source_of(place))
        ),
        None,
    )


def _copies(scene: Scene, place: Place) -> tuple[int, int]:
    """The latest two results of a line in use, if the second is a whole number of times as large; else -1."""
    view, allocations = scene.view, scene.device.allocations
    results = [row for row in scene.advice_rows.tolist() if view.place_of_block(row) == place]
    latest = sorted(results, key=allocations.born.__getitem__)[-2:]
    outer_bytes, *inner_bytes = allocations.requested_bytes[latest].tolist() or [0]
    if not outer_bytes or not inner_bytes:
        return -1, -1
    is_multiple = inner_bytes[0] > outer_bytes and not inner_bytes[0] % outer_bytes
    # A recursive model puts together what its inner calls give: from the inside out.
    is_inside = _passages(scene, latest[1], place) == _passages(scene, latest[0], place) + 1
    return (latest[0], latest[1]) if is_multiple and is_inside else (-1, -1)


def _passages(scene: Scene, row: int, place: Place) -> int:
    """How often the stack of a request passes a line."""
    frames = scene.trace.stacks.of(int(scene.device.allocations.stack[row]))
    return sum(frame.place == place for frame in frames)
