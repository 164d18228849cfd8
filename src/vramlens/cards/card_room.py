"""What a card leaves for PyTorch's allocator, and by how much a predicted run may be off."""

from __future__ import annotations

from dataclasses import dataclass

SEGMENT_BYTES = 22 * 2**20
"""One segment of the allocator: a prediction may be off by as much however small it is."""


@dataclass(frozen=True, slots=True)
class CardRoom:
    """What a card leaves for the allocator.

    Attributes:
        total_bytes: the card's memory.
        free_bytes: what is left beside the least that a process takes outside the allocator.
        least_bytes: within which a run surely fits.
        most_bytes: beyond which it surely does not.
    """

    total_bytes: int
    free_bytes: int
    least_bytes: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class PredictionMargins:
    """What a prediction leaves open of a card.

    Attributes:
        share: of its peak, by which it may be off.
        outside_bytes: what a process takes of a card outside the allocator, at least and at most.
        not_modelled_bytes: what a run may ask for beyond the prediction.
    """

    share: float
    outside_bytes: tuple[int, int]
    not_modelled_bytes: int = 0

    def of_peak(self, reserved_bytes: int) -> int:
        """Bytes by which a predicted peak may be off, to either side."""
        return int(reserved_bytes * self.share) + SEGMENT_BYTES

    def room_on(self, total_bytes: int) -> CardRoom:
        """What a card of some size leaves for the predicted run."""
        least_outside, most_outside = self.outside_bytes
        margin = self.of_peak(total_bytes)
        return CardRoom(
            total_bytes=total_bytes,
            free_bytes=max(0, total_bytes - least_outside),
            least_bytes=max(0, total_bytes - most_outside - self.not_modelled_bytes - margin),
            most_bytes=max(0, total_bytes - least_outside + margin),
        )
