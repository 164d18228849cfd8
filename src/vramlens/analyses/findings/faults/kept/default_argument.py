"""What a default argument collects: it is made once, and each call adds to the same one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.usage import part_of_heap
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import counted, format_size

_DEFAULT = re.compile(r"^(?P<function>[^\[]+)\.__(?:kw)?defaults__\[[^\]]*\][\[.]")
"""An entry of what a function takes where its caller leaves an argument out (capture/names)."""
_FEWEST_ENTRIES = 3
_LEAST_SHARE = 0.25


@after_failure
def default_argument(scene: Scene) -> Iterator[Finding]:
    """The function whose default arguments keep the most when memory runs out, if that is much of all."""
    names, sizes = scene.view.names, scene.device.allocations.requested_bytes
    by_function: defaultdict[str, list[int]] = defaultdict(list)
    for row in scene.program_rows.tolist():
        entry = _DEFAULT.match(names.name(row))
        place = scene.view.place_of_block(row)
        # What the function makes itself: a default that was full from the start is data.
        if entry is not None and place is not None and entry["function"].endswith(place.function):
            by_function[entry["function"]].append(row)
    for function, entries in by_function.items():
        rows = np.array(entries, np.int64)
        size_bytes = int(sizes[rows].sum())
        if (
            len(rows) >= _FEWEST_ENTRIES
            and size_bytes >= _LEAST_SHARE * scene.advice_heap.requested_bytes
        ):
            yield Finding(
                id="default_argument",
                verdict=Verdict.LIKELY,
                title=f"{counted(len(rows), 'tensor')} in a default argument of {function}() hold"
                f" {part_of_heap(size_bytes, scene.advice_heap)}",
                bytes=size_bytes,
                place=scene.view.place_of_block(int(rows[-1])),
                evidence=(
                    "a default argument is made once, with its function: each call adds to the same one",
                ),
                fix=f"let each call of {function}() make its own: None as the default, and in the body"
                f" `if it is None:` a new one; if it is meant as a cache, limit it (up to"
                f" {format_size(size_bytes)} less)",
                extent=Extent(scene.advice_event, rows),
            )
