"""The largest batch that fits: the same requests at another scale, replayed.

Activations, their gradients and the batch itself are proportional to the batch. Parameters, their
gradients, the optimizer's state and workspaces are not; nor is what is as large as a parameter, or
a copy of one in another type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vramlens._native import Replay
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.phases import Phase

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vramlens.analyses.attribution.attribution import Attribution
    from vramlens.replay.need.step_need import Projection
    from vramlens.replay.proof import Proven

_DRIVER, _ASCENDING = 0, 1  # native/replay_addresses.h
_SPARE = 0.005
"""Of the limit: left free, since outcomes near it hang on the driver."""
_FINEST = 0.01
_SMALLEST = 0.02
_STEP_DOWN = 2
"""Percent: where another order of addresses does not fit, the next smaller batch is tried."""
_LEAST_BYTES = 4096
"""What is smaller does not count, and may well not grow."""


@dataclass(frozen=True, slots=True)
class SmallerBatch:
    """A batch that fits.

    Attributes:
        share: of the failed step's batch.
        peak_reserved_bytes: what its steps reserve under the limit.
    """

    share: float
    peak_reserved_bytes: int


class _AtScale:
    """The continued run with its batch at another scale."""

    def __init__(self, proven: Proven, projection: Projection, fixed: NDArray[np.bool_]) -> None:
        self._proven, self._columns = proven, projection.continued.columns
        self._fixed = fixed
        version = proven.recorded.version
        self._settings = proven.recorded.settings.native(version, reserve=proven.reserve_bytes)
        limit = proven.recorded.limit
        assert limit.bytes is not None
        self._room = int(limit.bytes * (1 - _SPARE)) - projection.unseen_bytes
        name = "capacity" if limit.of_device else "allowed_maximum"
        self._limited = self._settings | {name: self._room}

    @property
    def has_room(self) -> bool:
        """Whether anything may be reserved at all, beside what no earlier step shows."""
        return self._room > 0

    def peak(self, share: float, orders: tuple[int, ...] = (_DRIVER,)) -> int | None:
        """What the run reserves at most; None where it runs out of memory."""
        columns = self._columns
        sizes = columns["row_requested"].astype(np.float64)
        scaled = np.where(self._fixed, sizes, np.maximum(512, np.rint(sizes * share))).astype(
            np.uint64
        )
        rows = columns["allocation"]
        by_event = np.where(rows < 0, columns["size"], scaled[np.maximum(rows, 0)]).astype(
            columns["size"].dtype
        )
        changed: dict[str, Any] = {**columns, "row_requested": scaled, "size": by_event}
        replay = Replay(changed, pools=len(self._proven.requests.pools), settings=self._settings)
        peaks = []
        for order in orders:
            run = replay.run(self._limited, addresses=order, completion=0, seed=0)
            if run["died_at"] >= 0:
                return None
            peaks.append(run["peak_reserved"])
        return max(peaks)


def largest_share(proven: Proven, projection: Projection, view: Attribution) -> SmallerBatch | None:
    """The largest share of the failed step's batch that fits; None where not even a small one
    does.
    """
    at_scale = _AtScale(proven, projection, _fixed_rows(view, projection))
    low, high = _SMALLEST, 1.0
    if not at_scale.has_room or at_scale.peak(low) is None:
        return None
    while high - low > _FINEST:
        middle = (low + high) / 2
        if at_scale.peak(middle) is None:
            high = middle
        else:
            low = middle
    for percent in range(int(low * 100), int(_SMALLEST * 100), -_STEP_DOWN):
        peak = at_scale.peak(percent / 100, (_DRIVER, _ASCENDING))
        if peak is not None:
            return SmallerBatch(percent / 100, peak)
    return None


def _fixed_rows(view: Attribution, projection: Projection) -> NDArray[np.bool_]:
    """By row of the continued requests, whether it is as large for any batch."""
    allocations = view.device.allocations
    template_rows = projection.continued.template_rows
    category, phase = view.categories.category[template_rows], view.phases.phase[template_rows]
    sizes = allocations.requested_bytes[template_rows]
    lasting = (
        Category.PARAMETERS,
        Category.OPTIMIZER_STATE,
        Category.GRADIENTS,
        Category.WORKSPACE,
    )
    fixed = np.isin(category, lasting) | np.isin(phase, (Phase.OPTIMIZER, Phase.OTHER))
    fixed |= (allocations.born[template_rows] < 0) | (sizes < _LEAST_BYTES)
    parameters = np.unique(
        allocations.requested_bytes[view.categories.category == Category.PARAMETERS]
    )
    copies = np.unique(np.concatenate((parameters, parameters // 2, parameters * 2)))
    fixed |= np.isin(sizes, copies) & (phase != Phase.FORWARD)
    fixed |= np.isin(sizes, parameters // 2) & (phase == Phase.FORWARD)
    return np.asarray(fixed)
