"""The sums of one out-of-memory message: who holds what, what refused the request, by how much, and
what that excludes.

The figures are printed rounded; every comparison here allows for that, so it holds whatever the
hidden digits are.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramlens.ground.allocator_sizes import LARGE_SEGMENT, PAGE, SMALL_REQUEST, SMALL_SEGMENT
from vramlens.ground.verdict import RowConfidence
from vramlens.ground.vocabulary import LedgerKind, LedgerRow
from vramlens.read.oom.oom_text import OomMessage
from vramlens.units import format_size

ROUNDING = "the rounding of the printed numbers"
"""The note of a ledger row that is no more than that."""

# Who owns the processes that the message lists


@dataclass(frozen=True, slots=True)
class ProcessShares:
    """This process's bytes and the others' on the device: ``how`` is named | inferred | unclear
    | none.
    """

    how: str
    own_bytes: int | None
    others: tuple[tuple[int, int], ...]
    others_low: int  # the least and the most that other processes may hold among those listed
    others_high: int


def owners_of(message: OomMessage) -> ProcessShares:
    """Who is who among the listed processes.

    In a container the driver gives outer pids, PyTorch does not find its own among them, and the
    sentence about "this process" is missing: then one of the "other" processes is this one.
    """
    listed = message.other_processes
    total = sum(size for _, size in listed)
    if message.process_bytes is not None:
        return ProcessShares(
            how="named",
            own_bytes=message.process_bytes,
            others=listed,
            others_low=total,
            others_high=total,
        )
    if not listed:
        return ProcessShares(how="none", own_bytes=None, others=(), others_low=0, others_high=0)
    able = _possible_own_sizes(message)
    if not able:
        return ProcessShares(
            how="named", own_bytes=None, others=listed, others_low=total, others_high=total
        )
    if len(able) == 1 and message.reserved_bytes:
        other_processes = tuple(other for other in listed if other[1] != able[0])
        return ProcessShares(
            how="inferred",
            own_bytes=able[0],
            others=other_processes,
            others_low=total - able[0],
            others_high=total - able[0],
        )
    return ProcessShares(
        how="unclear",
        own_bytes=None,
        others=listed,
        others_low=total - max(able),
        others_high=total,
    )


def _possible_own_sizes(message: OomMessage) -> list[int]:
    low_bytes = message.reserved_bytes
    if low_bytes is None:
        low_bytes = message.allocated_bytes or 0
    low_bytes -= message.slack("reserved_bytes", "allocated_bytes", "other_processes")
    return [size for _, size in message.other_processes if size >= low_bytes]


# The wall and the shortage


def _held(message: OomMessage) -> int | None:
    return message.reserved_bytes if message.reserved_bytes is not None else _counted(message)


def _counted(message: OomMessage) -> int | None:
    """What counts against the limit where nothing is printed as reserved: MPS counts all of the
    process.
    """
    return message.process_bytes if message.kind == "mps" else message.allocated_bytes


def wall_of(message: OomMessage, owners: ProcessShares) -> str:
    """What refused the request; unknown where the figures do not show it."""
    tried, free = message.tried_bytes, message.free_bytes
    if _is_host_memory(message):
        return "host"
    if message.kind in ("triton", "fork") or tried is None:
        return "unknown"
    if free is None:
        return "process_limit" if _over_limit(message) else "unknown"
    if free >= tried:
        return _wall_despite_room(message, tried, free)
    rounding = message.slack("tried_bytes", "free_bytes", "other_processes")
    if owners.others_low and free + owners.others_low >= tried + rounding:
        return "other_process"
    return "device" if free + owners.others_high < tried + rounding else "unknown"


def _wall_despite_room(message: OomMessage, tried: int, free: int) -> str:
    """The wall of a request for which enough was free on the device."""
    if message.allowed_bytes is not None:
        return "process_limit" if _over_limit(message) is not False else "unknown"
    # Beyond rounding, it was refused though enough was free: host memory, WSL, or freed just
    # afterwards.
    rounding = message.slack("tried_bytes", "free_bytes")
    return "device" if free <= tried + rounding else "unknown"


def _is_host_memory(message: OomMessage) -> bool:
    names_host = any(words in message.text for words in ("HOST_ALLOCATION", "CUDA host alloc"))
    return message.kind == "host" or message.while_pinning or names_host


def _over_limit(message: OomMessage) -> bool | None:
    """Whether the request would have passed the process's limit; None where that cannot be told."""
    used_bytes = _held(message)
    if message.allowed_bytes is None or message.tried_bytes is None or used_bytes is None:
        return None
    rounding = message.slack(
        "tried_bytes", "allowed_bytes", "reserved_bytes", "process_bytes", "allocated_bytes"
    )
    return used_bytes + message.tried_bytes > message.allowed_bytes - rounding


def shortage(message: OomMessage, wall: str) -> tuple[int | None, int]:
    """How much the request lacked, and the rounding of that; (None, 0) where the text does not
    tell.
    """
    tried, free = message.tried_bytes, message.free_bytes
    if tried is None:
        return None, 0
    if wall == "process_limit":
        short, slack = _over_by(message, tried)
    elif free is not None:
        short, slack = tried - free, message.slack("tried_bytes", "free_bytes")
    else:
        return None, 0
    return (short, slack) if short > 0 else (None, 0)


def _over_by(message: OomMessage, tried: int) -> tuple[int, int]:
    """The bytes by which the request would have passed the process's limit, and the rounding of that; 0
    where that cannot be told.
    """
    used_bytes = _held(message)
    if used_bytes is None or message.allowed_bytes is None:
        return 0, 0
    used_field = "reserved_bytes" if message.reserved_bytes is not None else "allocated_bytes"
    if message.kind == "mps":
        used_field = "process_bytes"
    slack = message.slack("tried_bytes", "allowed_bytes", used_field)
    return used_bytes + tried - message.allowed_bytes, slack


# expandable_segments, and the causes that sums can rule out


def least_request(message: OomMessage) -> int:
    """The smallest tensor for which PyTorch asks the driver for this much (with default segment
    sizes): any smaller one hides behind the same printed size.
    """
    tried = (message.tried_bytes or 0) - message.slack("tried_bytes")
    if tried <= SMALL_SEGMENT:
        return 1
    return SMALL_REQUEST if tried <= LARGE_SEGMENT else tried - PAGE


def room_of(message: OomMessage) -> tuple[int | None, int]:
    """The most that PyTorch could hold if no byte were lost to holes, and the rounding of that."""
    rooms = []
    if message.allowed_bytes is not None:
        rooms.append((message.allowed_bytes, message.slack("allowed_bytes")))
    if message.free_bytes is not None and message.reserved_bytes is not None:
        rooms.append(
            (
                message.free_bytes + message.reserved_bytes,
                message.slack("free_bytes", "reserved_bytes"),
            )
        )
    return min(rooms, default=(None, 0), key=lambda room: room[0] + room[1])


def expandable_verdict(message: OomMessage) -> str | None:
    """What the figures say of ``expandable_segments``: "refuted" or "undecided"; None where no
    figures are printed, or no holes.
    """
    if message.live_bytes is None or message.tried_bytes is None or message.kind == "mps":
        return None
    if overflow(message, least_request(message)) > 0:
        return "refuted"
    if message.reserved_bytes is not None and message.reserved_bytes == message.allocated_bytes:
        return None  # nothing lies in holes
    # Older XPU has no such setting.
    return "undecided" if message.kind != "xpu" or message.hint_expandable else None


def overflow(message: OomMessage, request_bytes: int) -> int:
    """By how much live blocks plus a request surely pass the room; 0 or less where they may fit."""
    room, rounding = room_of(message)
    if room is None or message.live_bytes is None:
        return 0
    live_rounding = message.slack("allocated_bytes", "private_pool_bytes")
    return message.live_bytes + request_bytes - room - rounding - live_rounding


_HOLES_FOR_REQUESTS, _HOLES_OF_RESERVED = 2, 0.1


def likely_holes(message: OomMessage, wall: str) -> int | None:
    """The bytes that PyTorch reserved and has in no tensor, where they are likely why it failed;
    None elsewhere.

    PyTorch gives back every empty segment before it fails, so what is left lies between live
    blocks, or in segments of
    another pool or stream. Some always does: in recorded failures for want of room up to 7% of
    what was reserved and 0.8 times the request; in one by fragmentation 67% and 2.2 times.
    """
    reserved, allocated, tried = (
        message.reserved_bytes,
        message.allocated_bytes,
        message.tried_bytes,
    )
    if (
        wall not in ("device", "process_limit")
        or reserved is None
        or allocated is None
        or tried is None
    ):
        return None
    holes = reserved - allocated
    return (
        holes if holes >= max(_HOLES_FOR_REQUESTS * tried, _HOLES_OF_RESERVED * reserved) else None
    )


# The ledger


def ledger_of(
    message: OomMessage, owners: ProcessShares
) -> tuple[tuple[LedgerRow, ...], tuple[str, ...]]:
    """Rows that sum to the device's total, and a sentence where the figures do not add up.

    pytorch_private_pools are free blocks of graph pools; this_process stands where PyTorch's part
    is not printed. Rows are never negative; those trimmed for rounding count as inferred.
    """
    total = message.total_bytes
    if total is None:
        return (), ()
    rows = [*_pytorch_rows(message), *_process_rows(message, owners)]
    if message.free_bytes is not None:
        rows.append(LedgerRow(LedgerKind.FREE, message.free_bytes, RowConfidence.EXACT))
    gap = total - sum(row.bytes for row in rows)
    rounding = _rounding_of_use(message)
    if -gap > rounding:
        too_much = format_size(-gap)
        return (), (
            f"The printed numbers exceed the device's total by {too_much}, so they cannot "
            "be added up.",
        )
    if gap < 0:
        rows = _trimmed(rows, -gap)
    prints_all_use = message.free_bytes is not None and owners.how in ("named", "inferred")
    note = ROUNDING if gap <= rounding and prints_all_use else ""
    rows.append(LedgerRow(LedgerKind.UNKNOWN, max(0, gap), RowConfidence.UNKNOWN, note))
    return tuple(row for row in rows if row.bytes), ()


def _rounding_of_use(message: OomMessage) -> int:
    not_in_use = ("tried_bytes", "allowed_bytes")
    return message.slack(*(name for name, _ in message.roundings if name not in not_in_use))


def _pytorch_rows(message: OomMessage) -> list[LedgerRow]:
    if message.live_bytes is None:
        return []
    rows = [LedgerRow(LedgerKind.PYTORCH_ALLOCATED, message.live_bytes, RowConfidence.EXACT)]
    if message.private_pool_bytes:
        rows.append(
            LedgerRow(
                LedgerKind.PYTORCH_PRIVATE_POOLS, message.private_pool_bytes, RowConfidence.EXACT
            )
        )
    if message.unallocated_bytes is not None:
        rows.append(
            LedgerRow(LedgerKind.PYTORCH_CACHED, message.unallocated_bytes, RowConfidence.EXACT)
        )
    elif message.reserved_bytes is not None:
        cached = max(0, message.reserved_bytes - (message.allocated_bytes or 0))
        rows.append(LedgerRow(LedgerKind.PYTORCH_CACHED, cached, RowConfidence.INFERRED))
    return rows


def _process_rows(message: OomMessage, owners: ProcessShares) -> list[LedgerRow]:
    rows = []
    outside = outside_pytorch(message, owners)
    confidence = RowConfidence.EXACT if owners.how == "named" else RowConfidence.INFERRED
    if outside is not None:
        rows.append(LedgerRow(LedgerKind.THIS_PROCESS_OTHER, outside, RowConfidence.INFERRED))
    elif owners.own_bytes is not None and message.live_bytes is None:
        rows.append(LedgerRow(LedgerKind.THIS_PROCESS, owners.own_bytes, confidence))
    other_bytes = sum(size for _, size in owners.others)
    if owners.how in ("named", "inferred"):
        rows.append(LedgerRow(LedgerKind.OTHER_PROCESSES, other_bytes, confidence))
    elif owners.how == "unclear" and message.reserved_bytes is not None:
        # One of those listed is this process: what PyTorch reserved is among them.
        other_bytes = max(0, other_bytes - message.reserved_bytes)
        rows.append(LedgerRow(LedgerKind.OUTSIDE_PYTORCH, other_bytes, RowConfidence.INFERRED))
    return rows


def outside_pytorch(message: OomMessage, owners: ProcessShares) -> int | None:
    """This process's bytes outside PyTorch's allocator; None where not known or where figures
    disagree.
    """
    reserved = (
        message.reserved_bytes if message.reserved_bytes is not None else message.allocated_bytes
    )
    if owners.own_bytes is None or reserved is None:
        return None
    outside = owners.own_bytes - reserved
    rounding = message.slack(
        "process_bytes", "reserved_bytes", "allocated_bytes", "other_processes"
    )
    return None if outside < -rounding else max(0, outside)


def _trimmed(rows: list[LedgerRow], excess: int) -> list[LedgerRow]:
    """The rows less what rounding put in too much: differences give way first, then the largest."""
    trimmed = list(rows)
    for index in sorted(
        range(len(rows)),
        key=lambda i: (rows[i].confidence != RowConfidence.INFERRED, -rows[i].bytes),
    ):
        cut = min(excess, trimmed[index].bytes)
        if cut:
            trimmed[index] = LedgerRow(
                rows[index].kind, rows[index].bytes - cut, RowConfidence.INFERRED
            )
        excess -= cut
    return trimmed
