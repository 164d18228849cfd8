"""A list or dict that is built anew of its own entries: all the old ones live until the new one is whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.training import Training
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.expressions.costly_expression import shown
from vramlens.analyses.findings.faults.requests.current_call import begin_of_call
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import Frame
from vramlens.trace.stacks import user_frame_of
from vramlens.units import format_size

_REBUILD = re.compile(
    r"^(?P<old>[\w.]+)(?:\[:\])?\s*=\s*"
    r"(?:\w+\()?[\[({].*\bfor\b.*\bin\s+(?:enumerate\()?(?P=old)(?:\.items\(\)|\.values\(\))?\)?\s*[\])}]+$"
)
"""``cache = [move(k) for k in cache]``, likewise of a dict, and in place."""
_FEWEST = 2
"""New entries, with the one that was asked for: of one, the old one must live anyway."""


@after_failure
def rebuilt_collection(scene: Scene) -> Iterator[Finding]:
    """The new entries that were made when memory ran out for another one."""
    frame = user_frame_of(scene.trace.stacks.of(scene.ending_request.stack))
    if frame is None or scene.view.training == Training.SEEN:
        return  # a backward pass may need the old entries anyway
    statement = scene.source_of(frame.place)
    rebuild = _REBUILD.match(statement)
    if rebuild is None:
        return
    rows = _new_entries(scene, frame)
    is_activation = scene.view.categories.category[rows] == Category.ACTIVATIONS
    if len(rows) + 1 < _FEWEST or is_activation.any():
        return
    size_bytes = scene.bytes_of(rows)
    yield Finding(
        id="rebuilt_collection",
        verdict=Verdict.LIKELY,
        title=f"{shown(statement)} makes every new entry while all the old ones are alive:"
        f" {scene.part_of_heap(size_bytes)} so far",
        bytes=size_bytes,
        place=frame.place,
        evidence=("that is the line that failed",),
        fix=f"replace one entry at a time (for each key or index i: {rebuild['old']}[i] = …): the"
        f" old entry goes before the next is made (at least {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
        recurs=True,
    )


def _new_entries(scene: Scene, frame: Frame) -> NDArray[np.int64]:
    """What the line has asked for in its call, and is alive."""
    rows = scene.advice_rows
    return rows[scene.device.allocations.born[rows] > begin_of_call(scene, frame)]
