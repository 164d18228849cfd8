"""The ledger: where all of a device's memory is; its rows sum to the device's total, the unknown
part named.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One part of a device's memory.

    Attributes:
        kind: pytorch_allocated, pytorch_cached, pytorch_private_pools, nccl, driver_reserved,
            this_process, this_process_other, other_processes, outside_pytorch, free or unknown.
        bytes: its size.
        confidence: exact, inferred or unknown.
        note: what is in it, or why it is not exact; "" if there is nothing to say.
    """

    kind: str
    bytes: int
    confidence: str
    note: str = ""


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
        LedgerRow("pytorch_allocated", allocated_bytes, "exact"),
        LedgerRow("pytorch_cached", reserved_bytes - allocated_bytes, "exact"),
    ]
    if free_bytes is None:
        return (*rows, LedgerRow("unknown", outside, "unknown"))
    return (
        *rows,
        LedgerRow("outside_pytorch", outside, "inferred"),
        LedgerRow("free", free_bytes, "exact"),
    )
