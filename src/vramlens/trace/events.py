"""Events of one device, in order: what the allocator did, to which address, asked for from
where.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from vramlens.trace.strings import NO_TEXT


class Action(IntEnum):
    """What an event is (torch/csrc/cuda/memory_snapshot.cpp names them so)."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    OOM = 7
    SNAPSHOT = 8
    OTHER = 9


@dataclass(frozen=True, eq=False)
class Events:
    """One row an event.

    Attributes:
        action: an Action.
        address: of the block or segment, in bytes; 0 for an out-of-memory event.
        size: bytes; requested ones for allocations and frees, rounded ones for an out-of-memory
            event.
        stream: the CUDA stream as a number; 0 is the default stream.
        time_us: microseconds since the epoch; 0 where the recording has none.
        stack: id of the stack; NO_STACK where the event has none.
        compile_context, user_metadata, other_action: text ids, NO_TEXT where absent.
        pool: row of ``Trace.pools``, NO_TEXT where the recording does not say.
    """

    action: NDArray[np.uint8]
    address: NDArray[np.uint64]
    size: NDArray[np.uint64]
    stream: NDArray[np.uint64]
    time_us: NDArray[np.int64]
    stack: NDArray[np.uint32]
    compile_context: NDArray[np.uint32]
    user_metadata: NDArray[np.uint32]
    other_action: NDArray[np.uint32]
    pool: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.action)

    @property
    def has_pools(self) -> bool:
        """Whether the recording names a memory pool for its events (PyTorch 2.12 and newer)."""
        return bool(len(self.pool)) and bool((self.pool != NO_TEXT).any())


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A request that failed.

    Attributes:
        event: its index among the device's events.
        size_bytes: the block that was asked for, rounded.
        device_free_bytes: what the driver said was free on the device at that moment; None where
            not recorded.
        stream: of the request.
        stack: id of the stack of the request.
    """

    event: int
    size_bytes: int
    device_free_bytes: int | None
    stream: int
    stack: int
