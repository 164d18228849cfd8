"""A tensor that each step enlarges and hands to the next one, and what is computed from it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.steps import PATTERN
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import counted, format_size

_ENLARGES = re.compile(
    r"^(?P<name>(?:\w+\.)+\w+) = (?:torch\.)?(?:cat|concat|hstack|vstack)\([\[(](?P=name),"
)
"""``graph.edge_index = torch.cat([graph.edge_index, extra], dim=1)``."""
_FEWEST_STEPS = 8
_EARLIEST_STEPS = 3
"""Whose peaks tell what a step needs before the tensor has grown: the first one warms up."""


@after_failure
def enlarged_by_steps(scene: Scene) -> Iterator[Finding]:
    """What steps take more because an attribute gets larger in each of them, where without that the
    failed request would have been served.
    """
    peaks = scene.step_peaks.peak_bytes[:_EARLIEST_STEPS]
    if len(scene.view.steps) <= _FEWEST_STEPS or scene.view.steps.source == PATTERN:
        return
    size_bytes = scene.wanted_bytes - max(peaks)
    short_bytes = (scene.verdict and scene.verdict.short_by_bytes) or 0
    row = _enlarged_row(scene) if size_bytes >= max(short_bytes, 1) else None
    if row is None:
        return
    name, place = scene.view.names.name(row), scene.view.place_of_block(row)
    sizes = scene.device.allocations.requested_bytes[_versions(scene, row)]
    first, last = format_size(int(sizes[0])), format_size(int(sizes[-1]))
    kept, _, attribute = name.rpartition(".")
    yield Finding(
        id="enlarged_by_steps",
        verdict=Verdict.LIKELY,
        title=f"each step enlarges {name}, and what is computed from it grows, too: this step takes"
        f" {format_size(size_bytes)} more than the first ones",
        bytes=size_bytes,
        place=place,
        evidence=(
            f"this line made it {counted(len(sizes), 'time')}, each time larger: from {first} to"
            f" {last}",
        ),
        fix=f"if each step is to begin with the same {attribute}, enlarge that of a copy"
        f" (copy.copy() of the {kept}, then assign) and leave the {kept} as it was; else limit its"
        f" length (up to {format_size(size_bytes)} less)",
        extent=scene.extent(np.array([row])),
        recurs=True,
    )


def _enlarged_row(scene: Scene) -> int | None:
    """The largest tensor that the program keeps by an attribute which a line enlarges in each step."""
    names = scene.view.names
    kept = names.of_kind(TensorKind.TENSOR, TensorKind.BUFFER)
    rows = np.intersect1d(kept[names.placed[kept]], scene.advice_rows)
    sizes = scene.device.allocations.requested_bytes[rows]
    for row in rows[np.argsort(-sizes, kind="stable")].tolist():
        text = scene.source_of(scene.view.place_of_block(row))
        match = _ENLARGES.match(text.strip())
        attribute = "" if match is None else match["name"].rpartition(".")[2]
        if match is not None and names.name(row).endswith(f".{attribute}"):
            return row if _grows_in_each_step(scene, row) else None
    return None


def _grows_in_each_step(scene: Scene, row: int) -> bool:
    versions = _versions(scene, row)
    sizes = scene.device.allocations.requested_bytes[versions]
    steps = np.unique(scene.view.step[versions])
    return len(steps) >= _FEWEST_STEPS and bool((np.diff(sizes) > 0).all())


def _versions(scene: Scene, row: int) -> NDArray[np.int64]:
    """What the line that made a tensor has made since the recording begins, the oldest first."""
    allocations = scene.device.allocations
    is_of_stack = allocations.stack == allocations.stack[row]
    rows = np.flatnonzero(is_of_stack & (allocations.born >= 0))
    return rows[np.argsort(allocations.born[rows])]
