"""Garbage: what the program is done with, and objects in circles keep until Python's collector runs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain

import numpy as np

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_LEAST_SHARE = 0.1
"""Of what is in use."""
_ATTRIBUTE = re.compile(r"\.([A-Za-z_]\w*)(?![\w\[])")
"""One that leads to a single object, not to entries of a container."""
_BACKWARD = frozenset({"parent", "_parent", "owner", "_owner", "previous", "prev", "prev_node"})
"""By name, links that do not own what they lead to."""


@after_failure
def uncollected_garbage(scene: Scene) -> Iterator[Finding]:
    """What only garbage keeps when memory runs out, if that is much."""
    names, sizes = scene.view.names, scene.device.allocations.requested_bytes
    rows_by_circle: defaultdict[str, list[int]] = defaultdict(list)
    for row in scene.advice_rows.tolist():
        if circle := names.circle(row):
            rows_by_circle[circle].append(row)
    rows = np.array(sorted(chain.from_iterable(rows_by_circle.values())), np.int64)
    size_bytes = scene.bytes_of(rows)
    if not size_bytes or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    largest = max(rows_by_circle, key=lambda circle: sizes[rows_by_circle[circle]].sum())
    yield Finding(
        id="uncollected_garbage",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are garbage that Python has not collected yet:"
        " nothing but a reference cycle keeps it",
        bytes=size_bytes,
        place=scene.view.place_of_block(int(rows[np.argmax(sizes[rows])])),
        evidence=(
            f"the cycle: {largest} leads back to where it begins",
            "Python's collector starts by the number of objects that were made, not by bytes on a"
            " GPU",
        ),
        fix="call gc.collect() where the program is done with such an object (not in each step),"
        f" or break the cycle: {_way_to_break(largest)} ({format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )


def _way_to_break(circle: str) -> str:
    if "_hooks" in circle:
        return "keep the handle of the hook, and call handle.remove()"
    links = [f".{name}" for name in _ATTRIBUTE.findall(circle) if name in _BACKWARD]
    link = links[0] if links else "the link that leads back to its owner"
    return f"hold {link} weakly (weakref.ref), or set it to None when it is done"
