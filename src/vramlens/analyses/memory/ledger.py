"""The ledger: where all of a device's memory is; its rows sum to the device's total, the unknown
part named.
"""

from __future__ import annotations

from vramlens.ground.verdict import RowConfidence
from vramlens.ground.vocabulary import LedgerKind, LedgerRow


def ledger_of(
    total_bytes: int, allocated_bytes: int, reserved_bytes: int, free_bytes: int | None
) -> tuple[LedgerRow, ...]:
    """The ledger of a device from the allocator's counters and what the driver says is free.

    What is neither reserved nor free belongs to the context, libraries and other processes:
    inferred, not told apart. Empty when the figures contradict each other.
    """
    outside = total_bytes - reserved_bytes - (free_bytes or 0)
    if outside < 0 or allocated_bytes > reserved_bytes:
        return ()
    rows = [
        LedgerRow(LedgerKind.PYTORCH_ALLOCATED, allocated_bytes, RowConfidence.EXACT),
        LedgerRow(LedgerKind.PYTORCH_CACHED, reserved_bytes - allocated_bytes, RowConfidence.EXACT),
    ]
    if free_bytes is None:
        return (*rows, LedgerRow(LedgerKind.UNKNOWN, outside, RowConfidence.UNKNOWN))
    return (
        *rows,
        LedgerRow(LedgerKind.OUTSIDE_PYTORCH, outside, RowConfidence.INFERRED),
        LedgerRow(LedgerKind.FREE, free_bytes, RowConfidence.EXACT),
    )
