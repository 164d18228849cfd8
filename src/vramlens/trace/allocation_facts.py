"""What a profiler's trace says of allocations, which a snapshot's stacks have to be asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class AllocationFacts:
    """One row an allocation of a device.

    Attributes:
        category, certainty, phase: numbers of ``analyses.attribution``'s Category, Certainty and
            Phase.
        frame: the user's function as a frame id; -1 where there is none.
        inferred: whether that function is the one whose backward was running.
    """

    category: NDArray[np.uint8]
    certainty: NDArray[np.uint8]
    phase: NDArray[np.uint8]
    frame: NDArray[np.int64]
    inferred: NDArray[np.bool_]
