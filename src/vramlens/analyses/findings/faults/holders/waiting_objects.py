"""Objects that each keep a tensor which was moved to the GPU, and wait for their turn: requests, samples."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import counted, format_size

_ATTRIBUTE = re.compile(
    r"^(?:(?P<owner>[A-Z]\w*)|(?P<store>[A-Za-z_][\w.]*)\[\d+\])\.(?P<attribute>\w+)$"
)
"""Of an object, by its class, which several have; or by its place in a queue, where that was found."""
_OF_LAYER = re.compile(
    r"^\w*(?:Layer|Block|Attention|MLP|Expert|Weights)\w*\.|\.(?:w\d*|weights?|bias|mlp|attn)$"
)
"""Weights of objects that are no modules."""
_FEWEST_OBJECTS = 8
_LEAST_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class ObjectTensors:
    """What the objects of one class, or in one queue, keep in one attribute.

    Attributes:
        owner: the objects in words: ``Call objects``.
        attribute: its name.
        rows: the allocations.
        size_bytes: of all of them.
    """

    owner: str
    attribute: str
    rows: NDArray[np.int64]
    size_bytes: int


def largest_attribute(scene: Scene) -> ObjectTensors | None:
    """The attribute of several objects that keeps the most, if that is much of what is in use; None of layers."""
    names = scene.view.names
    rows_of: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for row in scene.program_rows.tolist():
        match = _ATTRIBUTE.match(names.name(row))
        if match is not None and not names.kept_by(row):
            owner = (
                f"{match['owner']} objects"
                if match["owner"]
                else f"the objects in {match['store']}"
            )
            rows_of[owner, match["attribute"]].append(row)
    owner, attribute = max(
        rows_of, key=lambda pair: scene.bytes_of(rows_of[pair]), default=("", "")
    )
    rows = np.array(rows_of.get((owner, attribute), []), np.int64)
    size_bytes = scene.bytes_of(rows)
    if len(rows) < _FEWEST_OBJECTS or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return None
    if _OF_LAYER.search(names.name(int(rows[-1]))):
        return None
    return ObjectTensors(owner, attribute, rows, size_bytes)


@after_failure
def waiting_objects(scene: Scene) -> Iterator[Finding]:
    """What the objects of one class keep in one attribute, if their line moved it to the GPU and that is much of what
    is in use.
    """
    waiting = largest_attribute(scene)
    if waiting is None:
        return
    rows, size_bytes, attribute = waiting.rows, waiting.size_bytes, waiting.attribute
    place = scene.view.place_of_block(int(rows[-1]))
    is_next = place == scene.view.place_of_stack(scene.ending_request.stack)
    if not is_next or not scene.moves_data(place):
        return
    yield Finding(
        id="waiting_objects",
        verdict=Verdict.LIKELY,
        title=f"{counted(len(rows), 'tensor')} in .{attribute} of {waiting.owner} hold"
        f" {scene.part_of_heap(size_bytes)}",
        bytes=size_bytes,
        place=place,
        evidence=(
            "each was moved to the GPU before its object had its turn, and stays there until then",
        ),
        fix=f"keep .{attribute} on the CPU, and move it to the GPU where it is used, a batch at a"
        f" time (up to {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )
