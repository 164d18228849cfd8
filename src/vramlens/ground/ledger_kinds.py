"""The rows of a ledger, which sum to a device's memory, and their kinds in the order in which they
are shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramlens.ground.closed_words import ClosedWords


class LedgerKind(ClosedWords):
    """The holders of parts of a device's memory."""

    PYTORCH_ALLOCATED = "pytorch_allocated"
    PYTORCH_PRIVATE_POOLS = "pytorch_private_pools"
    PYTORCH_CACHED = "pytorch_cached"
    ENGINE_WEIGHTS = "engine_weights"
    ENGINE_ACTIVATIONS = "engine_activations"
    ENGINE_CACHE = "engine_cache"
    NCCL = "nccl"
    THIS_PROCESS = "this_process"
    THIS_PROCESS_OTHER = "this_process_other"
    OTHER_PROCESSES = "other_processes"
    OUTSIDE_PYTORCH = "outside_pytorch"
    DRIVER_RESERVED = "driver_reserved"
    FREE = "free"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One part of a device's memory.

    Attributes:
        kind: a LedgerKind, or another word in a recording of a newer version.
        bytes: its size.
        confidence: a RowConfidence.
        note: what is in it, or why it is not exact; "" if there is nothing to say.
    """

    kind: str
    bytes: int
    confidence: str
    note: str = ""
