"""What fills the memory at a failure, where that is one tensor or one line."""

from __future__ import annotations

from dataclasses import dataclass

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.finding import Place
from vramlens.analyses.memory.heap import Heap


@dataclass(frozen=True, slots=True)
class LargestUse:
    """One tensor, or the tensors of one line, that are at least half of the memory in use.

    Attributes:
        place: the line; None where a tensor's is unknown.
        bytes: requested bytes of it.
        allocations: how many tensors that is.
        of_bytes: the requested bytes in use.
    """

    place: Place | None
    bytes: int
    allocations: int
    of_bytes: int


def largest_use_of(view: Attribution, heap: Heap) -> LargestUse | None:
    """The tensor that is at least half of a heap, else the line; None where there is neither."""
    rows = view.device.allocations.alive_after(heap.event)
    if not len(rows):
        return None
    sizes = view.device.allocations.requested_bytes[rows]
    largest = int(sizes.argmax())
    if 2 * int(sizes[largest]) >= heap.requested_bytes:
        place = view.place_of_block(int(rows[largest]))
        return LargestUse(place, int(sizes[largest]), 1, heap.requested_bytes)
    for line in heap.by_line[:1]:
        if 2 * line.bytes >= heap.requested_bytes:
            return LargestUse(line.place, line.bytes, line.allocations, heap.requested_bytes)
    return None
