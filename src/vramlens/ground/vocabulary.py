"""Closed vocabularies, whose members are the very strings that output and JSON carry: walls and
causes of an out-of-memory failure, and the kinds of a ledger's rows, which sum to a device's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ClosedWords(str, Enum):
    """The base of a closed vocabulary: there are no other strings in it. The order of definition
    is the order of rank.

    (``enum.StrEnum`` exists from Python 3.11 on.)
    """

    __str__ = str.__str__

    @property
    def rank(self) -> int:
        """The place among its like, from 0."""
        return list(type(self)).index(self)


class Wall(ClosedWords):
    """The limit that refused a request."""

    PROCESS_LIMIT = "process_limit"
    DEVICE = "device"
    OTHER_PROCESS = "other_process"
    HOST = "host"
    UNKNOWN = "unknown"


class Cause(ClosedWords):
    """Why there was too little memory."""

    FRAGMENTATION = "fragmentation"
    LEAK = "leak"
    SPIKE = "spike"
    CAPACITY = "capacity"


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
