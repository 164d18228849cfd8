"""The extent of a finding: the blocks and free blocks of a recording that it is about."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


def _no_rows() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


def _no_holes() -> NDArray[np.int64]:
    return np.zeros((0, 2), np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Extent:
    """Where a finding's bytes lie, right after one event.

    Attributes:
        event: when.
        rows: the allocations that it is about; none where it is about holes alone.
        holes: the free stretches that it is about, as (address, bytes).
    """

    event: int
    rows: NDArray[np.int64] = field(default_factory=_no_rows, repr=False)
    holes: NDArray[np.int64] = field(default_factory=_no_holes, repr=False)
