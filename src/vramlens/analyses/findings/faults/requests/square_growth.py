"""A request that grows with the square of what goes in: two of its sizes do."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK
from vramlens.units import counted, format_size

_LEAST_TIMES = 1.5
"""The batch, of the largest before."""
_NEAR = 0.02
_FEWEST_ALIKE = 8
"""Lines of the step that ask for as many times as much as the batch is larger: fewer may be so by chance."""
_BATCHED_MATRIX = 3
_LEAST_SHARE = 0.3
"""Of what is in use, with the request that failed."""


@after_failure
def square_growth(scene: Scene) -> Iterator[Finding]:
    """The request that failed and what is as large, if it is the square of how much larger the batch is than
    any before.
    """
    growth = _growth_by_stack(scene)
    times = growth.pop(scene.ending_request.stack, 0.0) ** 0.5
    if times < _LEAST_TIMES or not _is_usually(growth.values(), times):
        return
    request_bytes = scene.ending_request.size_bytes
    sizes = scene.device.allocations.requested_bytes
    rows = scene.advice_rows[sizes[scene.advice_rows] == request_bytes]
    square_bytes = scene.bytes_of(rows) + request_bytes
    if square_bytes < _LEAST_SHARE * scene.wanted_bytes or _is_attention(scene, rows):
        return
    saved_bytes = int(square_bytes * (1 - 1 / times))
    yield Finding(
        id="square_growth",
        verdict=Verdict.LIKELY,
        title=f"{_named(scene, rows)} grows with the square of what goes in: {times**2:.2f}x what it was,"
        f" where other requests are {times:.2f}x the largest before",
        bytes=saved_bytes,
        place=scene.failed_place,
        evidence=(
            f"{counted(len(rows), 'tensor')} of {format_size(request_bytes)} and the request that"
            f" failed take {format_size(square_bytes)}",
        ),
        fix="two of its sizes grow with the inputs. Where one of them need not, correct it (an"
        " expert's capacity is about factor * top_k * tokens / experts; pairs that do not meet need"
        " no entry); else work on groups of the rows, one after the other: of half as many rows it"
        f" is a quarter (up to {format_size(saved_bytes)} less)",
        extent=scene.extent(rows),
    )


def _is_usually(growth: Collection[float], times: float) -> bool:
    """Whether most of what grows this step is so many times as large, and little the square of it: where much is,
    that is how much larger the inputs are.
    """
    alike, as_square = (
        sum(abs(other / factor - 1) <= _NEAR for other in growth) for factor in (times, times**2)
    )
    return alike >= _FEWEST_ALIKE and alike > as_square


def _is_attention(scene: Scene, rows: NDArray[np.int64]) -> bool:
    """Whether some are a number for each pair of positions of each sample: these grow with the length's square."""
    shapes = (scene.advice_shapes[row].sizes for row in rows.tolist() if row in scene.advice_shapes)
    return any(len(sizes) >= _BATCHED_MATRIX and sizes[-1] == sizes[-2] for sizes in shapes)


def _named(scene: Scene, rows: NDArray[np.int64]) -> str:
    """The shape of some rows, as far as one is known."""
    shapes = scene.advice_shapes
    return next((str(shapes[row]) for row in rows.tolist() if row in shapes), "the request")


def _growth_by_stack(scene: Scene) -> dict[int, float]:
    """How many times as large as any before the largest request of each stack is in this step; the one that
    failed is among them.
    """
    allocations = scene.device.allocations
    starts = scene.view.steps.starts_until(scene.advice_event)
    if len(starts) < 2:
        return {}
    is_known = (allocations.born >= 0) & (allocations.stack != NO_STACK)
    stacks = np.append(allocations.stack[is_known], scene.ending_request.stack).astype(np.int64)
    sizes = np.append(allocations.requested_bytes[is_known], scene.ending_request.size_bytes)
    born = np.append(allocations.born[is_known], scene.advice_event)
    largest = [np.zeros(int(stacks.max()) + 1, np.int64) for _ in ("before", "now")]
    for is_in_step, sizes_of_stack in zip(
        (born < starts[-1], born >= starts[-1]), largest, strict=True
    ):
        np.maximum.at(sizes_of_stack, stacks[is_in_step], sizes[is_in_step])
    before, now = largest
    both = np.flatnonzero((before > 0) & (now > 0))
    return dict(zip(both.tolist(), (now[both] / before[both]).tolist(), strict=True))
