"""The kinds of a device's memory, which sum to its total: one list, in the order in which they are
shown.
"""

from __future__ import annotations

from vramlens.ground.closed_words import ClosedWords


class LedgerKind(ClosedWords):
    """The holders of parts of a device's memory."""

    PYTORCH_ALLOCATED = "pytorch_allocated"
    PYTORCH_PRIVATE_POOLS = "pytorch_private_pools"
    PYTORCH_CACHED = "pytorch_cached"
    NCCL = "nccl"
    THIS_PROCESS = "this_process"
    THIS_PROCESS_OTHER = "this_process_other"
    OTHER_PROCESSES = "other_processes"
    OUTSIDE_PYTORCH = "outside_pytorch"
    DRIVER_RESERVED = "driver_reserved"
    FREE = "free"
    UNKNOWN = "unknown"
