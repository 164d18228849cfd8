"""A batch that is padded to more columns than any of its rows has."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import PaddedBatch
from vramlens.units import format_size

_LEAST_SHARE = 0.25
"""Of what is in use with the failed request, that is for padding: some is usual, as lengths are rounded up
to a multiple of 8 or 64.
"""
_COMPUTED = (Category.ACTIVATIONS, Category.TEMPORARIES)


@after_failure
def padded_columns(scene: Scene) -> Iterator[Finding]:
    """What is in use for columns of the batch that are padding in every row, when memory runs out, if
    that is much of all.
    """
    request, failure = scene.ending_request, scene.ending_failure
    batch = None if failure is None else failure.padded_batch
    if batch is None:
        return
    rows = _of_batch(scene, batch)
    in_use_bytes = scene.bytes_of(rows)
    if request.size_bytes % (batch.rows * batch.columns) == 0:
        in_use_bytes += request.size_bytes
    saved_bytes = in_use_bytes * (batch.columns - batch.used_columns) // batch.columns
    if saved_bytes < _LEAST_SHARE * scene.wanted_bytes:
        return
    yield Finding(
        id="padded_columns",
        verdict=Verdict.LIKELY,
        title=f"the batch has {batch.columns:,} columns, and its longest row uses"
        f" {batch.used_columns:,}: {scene.part_of_heap(saved_bytes)} are for padding",
        bytes=saved_bytes,
        place=scene.view.place_of_stack(request.stack),
        evidence=(
            f"{batch.columns - batch.used_columns:,} columns of the batch of {batch.rows:,} rows"
            " hold one and the same value in every row",
        ),
        fix="pad each batch to its longest row instead of a fixed length (with a tokenizer of"
        " transformers"
        f' padding="longest" instead of "max_length"): up to {format_size(saved_bytes)} less',
        extent=scene.extent(rows),
    )


def _of_batch(scene: Scene, batch: PaddedBatch) -> NDArray[np.int64]:
    """What the model has computed that has so many numbers for each entry of the batch."""
    rows = scene.advice_rows
    sizes = scene.device.allocations.requested_bytes[rows]
    is_computed = np.isin(scene.view.categories.category[rows], _COMPUTED)
    is_of_batch = (sizes > 0) & (sizes % (batch.rows * batch.columns) == 0)
    return np.asarray(rows[is_computed & is_of_batch])
