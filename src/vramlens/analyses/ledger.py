"""The ledger: where all of a device's memory is; its rows sum to the device's total, the unknown part named."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One part of a device's memory.

    Attributes:
        kind: pytorch_allocated, pytorch_cached, this_process_other, other_processes, outside_pytorch, free or unknown.
        bytes: its size.
        confidence: exact, inferred or unknown.
    """

    kind: str
    bytes: int
    confidence: str
