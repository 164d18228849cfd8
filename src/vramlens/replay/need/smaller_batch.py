"""The largest batch that fits: the same requests at another scale, replayed.

Activations, their gradients and the batch itself are proportional to the batch. Parameters, their
gradients, the optimizer's state and workspaces are not; nor is what is as large as a parameter, or
a copy of one in another type.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vramlens._layout import AddressOrder, Completion
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.phases import Phase
from vramlens.replay.need.continued_step import most_alive

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vramlens.analyses.attribution.attribution import Attribution
    from vramlens.analyses.failure.need import Need
    from vramlens.replay.need.step_need import Projection
    from vramlens.replay.proof import Proven


SPARE = 0.05
"""Of the limit: left free, since workspaces and gaps do not shrink with the batch as requests do."""
_SMALLEST = 2
"""Percent of the failed step's batch: less is not advice."""
_BELOW_SUMS = (1.0, 0.95, 0.85, 0.6, 0.3)
"""Shares of the batch that sums call right: the first that a replay finishes with begins the search."""
_NARROWED = 3
"""How often what lies between a batch that fits and one that does not is halved, at most."""
_CLOSE = 2
"""Percent: near enough."""
_BELOW_FITTING = (0, 2, 6, 14, 30)
"""Percent: where another order of addresses does not fit, a smaller batch is tried."""
_LEAST_BYTES = 4096
"""What is smaller does not count, and may well not grow."""


@dataclass(frozen=True, slots=True)
class SmallerBatch:
    """A batch that fits.

    Attributes:
        share: of the failed step's batch.
        peak_reserved_bytes: what its steps reserve under the limit, with the most that no earlier
            step shows.
    """

    share: float
    peak_reserved_bytes: int


class _AtScale:
    """The continued run with its batch at another scale."""

    def __init__(self, proven: Proven, projection: Projection, fixed: NDArray[np.bool_]) -> None:
        self._proven, self._columns = proven, projection.continued.columns
        self._fixed = fixed
        self._limit = proven.recorded.limit
        assert self._limit.bytes is not None
        self._usable_bytes = int(self._limit.bytes * (1 - SPARE))
        longer = projection.kept_longer
        self._growing_unseen = 0 if longer is None else longer.bytes_to_come
        self._fixed_unseen = projection.unseen_bytes - self._growing_unseen
        self._peaks: dict[tuple[int, int], int | None] = {}

    def largest_percent(self, with_holes: float = 1.0) -> int:
        """The largest share of the batch, below all of it, that fits by sums; 0 where none does.

        Args:
            with_holes: how many times what is alive is reserved.
        """

        def is_too_much(percent: int) -> bool:
            alive = most_alive({**self._columns, "row_requested": self._sizes(percent)})
            return alive * with_holes > self._room(percent)

        return bisect_left(range(1, 100), True, key=is_too_much)

    def _room(self, percent: int) -> int:
        """What may be reserved for what is projected at that share of the batch."""
        return self._usable_bytes - self._unseen(percent)

    def _unseen(self, percent: int) -> int:
        return self._fixed_unseen + self._growing_unseen * percent // 100

    def _sizes(self, percent: int) -> NDArray[np.uint64]:
        """By row, its requested bytes at that share of the batch."""
        sizes = self._columns["row_requested"].astype(np.float64)
        scaled = np.maximum(512, np.rint(sizes * (percent / 100)))
        return np.where(self._fixed, sizes, scaled).astype(np.uint64)

    def peak(self, percent: int, order: AddressOrder = AddressOrder.DRIVER) -> int | None:
        """What the run reserves at most; None where it runs out of memory."""
        if (percent, order) not in self._peaks:
            self._peaks[percent, order] = self._replayed(percent, order)
        return self._peaks[percent, order]

    def _replayed(self, percent: int, order: AddressOrder) -> int | None:
        columns, scaled = self._columns, self._sizes(percent)
        rows = columns["allocation"]
        by_event = np.where(rows < 0, columns["size"], scaled[np.maximum(rows, 0)]).astype(
            columns["size"].dtype
        )
        changed: dict[str, Any] = {**columns, "row_requested": scaled, "size": by_event}
        replay = self._proven.replay_of(changed)
        limited = self._proven.native(**self._limit.at(self._room(percent)))
        run = replay.run(limited, addresses=order, completion=Completion.RECORDED, seed=0)
        return None if run["died_at"] >= 0 else run["peak_reserved"] + self._unseen(percent)


def largest_share(
    proven: Proven, projection: Projection, view: Attribution, need: Need
) -> SmallerBatch | None:
    """The largest share of the failed step's batch that fits; None where not even a small one
    does.

    The sums say where to begin, so that few replays are needed: 18 at most.
    """
    return largest_fitting(_AtScale(proven, projection, _fixed_rows(view, projection)), need)


class Replays(Protocol):
    """A run whose batch may be scaled."""

    def largest_percent(self, with_holes: float = 1.0) -> int:
        """The largest share of the batch, below all of it, that fits by sums; 0 where none does."""

    def peak(self, percent: int, order: AddressOrder = AddressOrder.DRIVER) -> int | None:
        """What the run reserves at most; None where it runs out of memory."""


def largest_fitting(at_scale: Replays, need: Need) -> SmallerBatch | None:
    """The largest share that fits in two orders of addresses; None where none does."""
    fitting = _largest_fitting(at_scale, need)
    if fitting is None:
        return None
    for below in _BELOW_FITTING:
        percent = max(_SMALLEST, fitting - below)
        peak, other_peak = at_scale.peak(percent), at_scale.peak(percent, AddressOrder.ASCENDING)
        if peak is not None and other_peak is not None:
            return SmallerBatch(percent / 100, max(peak, other_peak))
    return None


def _largest_fitting(at_scale: Replays, need: Need) -> int | None:
    """The largest percentage that a replay finishes with; None where none does."""
    too_much, fitting = at_scale.largest_percent() + 1, 0
    if too_much <= _SMALLEST:
        return None
    reserved = need.limit_bytes or need.peak_reserved_bytes or need.low_bytes
    by_sums = at_scale.largest_percent(max(1.0, reserved / (need.floor_bytes or reserved)))
    for share in _BELOW_SUMS:
        percent = max(_SMALLEST, int(by_sums * share))
        if at_scale.peak(percent) is not None:
            fitting = percent
            break
        too_much = percent
    if not fitting:
        return None
    for _ in range(_NARROWED):
        if too_much - fitting <= _CLOSE:
            break
        middle = (fitting + too_much) // 2
        if at_scale.peak(middle) is None:
            too_much = middle
        else:
            fitting = middle
    return fitting


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
