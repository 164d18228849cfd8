"""The curve of a what-if: what would have been reserved after each of the recording's events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vramlens._native import NativeCurve
    from vramlens.trace import DeviceTrace


@dataclass(frozen=True, eq=False, slots=True)
class Curve:
    """Reserved bytes over a recording's events, a row a change.

    A request's change counts at the event that ends it: its allocation or failure.

    Attributes:
        event: never decreasing; -1 is what was there before the first event. Two rows of one event
            are the most within that event, and what was left right after it.
        reserved_bytes: from that event on.
        died_event: the request whose failure ends the program, and with it the curve; None where it
            runs to the end.
    """

    event: NDArray[np.int64]
    reserved_bytes: NDArray[np.int64]
    died_event: int | None

    def after(self, events: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes reserved right after each of some events."""
        return self.reserved_bytes[np.searchsorted(self.event, events, side="right") - 1]


def replayed_curve(found: NativeCurve, died_event: int | None) -> Curve:
    """The curve of one run of the native replay."""
    return _changes(found["event"], found["reserved"], died_event)


def recorded_curve(device: DeviceTrace, died_event: int | None) -> Curve:
    """The recorded curve itself, each segment at its own event."""
    reserved = np.concatenate(
        (np.array([device.reserved.base_bytes], np.int64), device.reserved_curve)
    )
    return _changes(np.arange(-1, len(reserved) - 1), reserved, died_event)


def _changes(
    event: NDArray[np.int64], reserved: NDArray[np.int64], died_event: int | None
) -> Curve:
    changed = np.flatnonzero(np.diff(reserved, prepend=reserved[0] - 1))
    return Curve(event[changed], reserved[changed], died_event)
