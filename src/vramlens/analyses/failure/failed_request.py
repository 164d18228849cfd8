"""The figures at one failed request."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vramlens.trace import OutOfMemory


@dataclass(frozen=True, slots=True)
class Failure:
    """The figures at one failed request.

    Attributes:
        request: the event.
        tried_bytes: the segment asked of the driver.
        live_bytes: requested bytes alive just before it.
        allocated_bytes, reserved_bytes: the allocator's counters.
        free_bytes: free on the device, as the driver said; None where not recorded.
        pool: the id of the private pool that the request was for; None for the default pool.
        usable_free_bytes, usable_holes, largest_usable_bytes: free blocks of the request's own pool
            and stream.
        usable_ranges: those blocks as (address, bytes).
        limit_low_bytes, limit_high_bytes: bounds of the process's limit, inclusive; None where
            there is none.
        room_bytes: what more could have been reserved; None where unknown.
        expandable: whether expandable segments were on.
    """

    request: OutOfMemory
    tried_bytes: int
    live_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    free_bytes: int | None
    pool: str | None
    usable_free_bytes: int
    usable_holes: int
    largest_usable_bytes: int
    limit_low_bytes: int | None
    limit_high_bytes: int | None
    room_bytes: int | None
    expandable: bool
    usable_ranges: NDArray[np.int64] = field(compare=False, repr=False)
