"""Another try inside of the except block: the error's traceback keeps what the failed one computed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import counted, format_size

_LASTING = (
    TensorKind.PARAMETER,
    TensorKind.BUFFER,
    TensorKind.GRADIENT,
    TensorKind.OPTIMIZER_STATE,
)


@after_failure
def retry_in_except(scene: Scene) -> Iterator[Finding]:
    """What passes that ran out of memory before are still holding, when another try fails while the
    error of the last one is being handled.
    """
    request, failure = scene.ending_request, scene.ending_failure
    if failure is None or not failure.while_handling:
        return
    earlier = [
        failed.event for failed in scene.device.out_of_memory if failed.event < request.event
    ]
    rows = _rows_of_failed_passes(scene, earlier)
    size_bytes = scene.bytes_of(rows)
    if not size_bytes:
        return
    largest = scene.device.allocations.largest_of(rows)
    yield Finding(
        id="retry_in_except",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are of {counted(len(earlier), 'try', 'tries')}"
        " that ran out of memory before, and are kept while the error is handled",
        bytes=size_bytes,
        place=scene.view.place_of_block(largest),
        evidence=(
            "inside of an except block the error's traceback keeps the variables of all calls that"
            " it passed through",
        ),
        fix="try again after the except block, not inside of it: set a flag there, leave it, then"
        f" call with a smaller batch (up to {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )


def _rows_of_failed_passes(scene: Scene, failures: list[int]) -> NDArray[np.int64]:
    """What is alive of what passes had asked for that ended in a failure."""
    view, allocations = scene.view, scene.device.allocations
    starts = scene.pass_begins
    alive = np.setdiff1d(scene.advice_rows, view.names.of_kind(*_LASTING))
    born = allocations.born[alive]
    is_of_failed = np.zeros(len(alive), np.bool_)
    for failed in failures:
        start = int(starts[starts <= failed].max(initial=-1))
        if start >= 0:
            is_of_failed |= (born >= start) & (born <= failed)
    return np.asarray(alive[is_of_failed])
