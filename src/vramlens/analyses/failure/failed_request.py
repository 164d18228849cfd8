"""The figures at one failed request, and what is known of the memory around it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vramlens.trace import DeviceLedger, OutOfMemory


@dataclass(frozen=True, slots=True)
class Outside:
    """What is known from beside the recorded events (the error's text, the command line, what was
    measured); None where unknown.

    Attributes:
        limit_bytes: what the process may reserve.
        total_bytes: the device's memory.
        free_bytes: free on the device at the failure.
        other_bytes: what other processes hold there.
        own_bytes: what this process holds there, with what lies outside PyTorch.
        ledger: what the recording measured when it was written; None where that is not the moment
            to tell of.
    """

    limit_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    other_bytes: int | None = None
    own_bytes: int | None = None
    ledger: DeviceLedger | None = None


NOTHING_KNOWN = Outside()


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
