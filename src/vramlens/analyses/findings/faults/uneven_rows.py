"""A batch of which a few rows are far longer than the others, and all are padded to the longest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import RowLengths
from vramlens.units import format_size

_MOST_USED = 0.4
"""Of the padded batch: less than what is recorded (a half), as labels at random look like even lengths."""
_MOSTLY = 0.5
"""Of what the pass has computed, that is padded: sequences that were packed are not."""
_LEAST_SHARE = 0.25
"""Of what is in use with the failed request, that is for padding."""
_COMPUTED = (Category.ACTIVATIONS, Category.TEMPORARIES)


@after_failure
def uneven_rows(scene: Scene) -> Iterator[Finding]:
    """What is in use for padding to the longest row of the batch when memory runs out, if that is much."""
    request, batch = scene.ending_request, _batch(scene)
    if batch is None:
        return
    rows = _computed_of_pass(scene)
    sizes, padded = scene.device.allocations.requested_bytes[rows], batch.rows * batch.longest
    padded_bytes = int(sizes[sizes % padded == 0].sum())
    if padded_bytes < _MOSTLY * int(sizes.sum()):
        return
    in_use_bytes = padded_bytes + request.size_bytes
    saved_bytes = in_use_bytes * (padded - batch.total) // padded
    if saved_bytes < _LEAST_SHARE * scene.wanted_bytes:
        return
    yield Finding(
        id="uneven_rows",
        verdict=Verdict.LIKELY,
        title=f"the batch's {batch.rows:,} rows are padded to the longest, {batch.longest:,}, and"
        f" only {100 * batch.total / padded:.0f}% of the padded batch is data: about"
        f" {scene.part_of_heap(saved_bytes)} are for padding",
        bytes=saved_bytes,
        place=scene.view.place_of_stack(request.stack),
        evidence=(
            f"the rows have {batch.total:,} entries in all, {batch.total // batch.rows:,} on"
            " average",
        ),
        fix="cut or leave out rows that are far longer than the others, or put rows of about one"
        " length into a batch (sort by length, and limit a batch by its rows times its longest"
        f" row): up to {format_size(saved_bytes)} less",
        extent=scene.extent(rows),
    )


def _batch(scene: Scene) -> RowLengths | None:
    """The lengths of which a tensor on the GPU has the sizes; None without any that are uneven enough."""
    shapes = {shape.sizes for shape in scene.advice_shapes.values()}
    fitting = (
        batch for batch in uneven_batches(scene) if any(_fits(sizes, batch) for sizes in shapes)
    )
    return next(fitting, None)


def uneven_batches(scene: Scene) -> Iterator[RowLengths]:
    """Yields the lengths of a batch that are uneven, where a tensor on the GPU has as many rows."""
    failure = scene.ending_failure
    counts = {size for shape in scene.advice_shapes.values() for size in shape.sizes[:2]}
    for batch in () if failure is None else failure.row_lengths:
        is_uneven = batch.total <= _MOST_USED * batch.rows * batch.longest
        if is_uneven and batch.rows in counts:
            yield batch


def _fits(sizes: tuple[int, ...], batch: RowLengths) -> bool:
    """Whether a tensor has a row for each, as long as the longest; batches may stand second."""
    return any(
        size == batch.rows and batch.longest in (*sizes[:place], *sizes[place + 1 :])
        for place, size in enumerate(sizes[:2])
    )


def _computed_of_pass(scene: Scene) -> NDArray[np.int64]:
    """What modules have computed since the last backward pass."""
    view, rows = scene.view, scene.advice_rows
    is_computed = np.isin(view.categories.category[rows], _COMPUTED) & view.modules.marked[rows]
    return np.asarray(
        rows[is_computed & (scene.device.allocations.born[rows] > scene.last_backward_end)]
    )
