"""Times of events: nanoseconds since the recording's first event, in the order in which the
events happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.trace import DeviceTrace

_LATEST_US = 1 << 60
_LONGEST_US = 1 << 52
"""Some 140 years: what a recording says beyond that is not a time, and must not overflow when it
becomes nanoseconds.
"""


@dataclass(frozen=True, eq=False)
class Clock:
    """When the events of a device happened.

    Attributes:
        events_ns: one an event, never falling: events of the same microsecond are spread over it in
            their order, so that a tool which sorts by time keeps it.
        start_us: what 0 is, in microseconds since the epoch.
        timed: whether the recording has times; without them each event takes a microsecond.
    """

    events_ns: NDArray[np.int64]
    start_us: int
    timed: bool

    @property
    def end_ns(self) -> int:
        """When the last event happened."""
        return int(self.events_ns[-1]) if len(self.events_ns) else 0

    def at(self, events: NDArray[np.int64]) -> NDArray[np.int64]:
        """The times of some events: the beginning for those before the first, the end for those
        after the last.
        """
        if not len(self.events_ns):
            return np.zeros(len(events), np.int64)
        return np.asarray(self.events_ns[np.clip(events, 0, len(self.events_ns) - 1)])

    def of_us(self, times_us: NDArray[np.int64]) -> NDArray[np.int64]:
        """Times since the epoch as times of this clock, none of them outside of the recording."""
        since_us = np.clip(times_us, 0, _LATEST_US) - self.start_us
        return np.minimum(np.clip(since_us, 0, _LONGEST_US) * 1000, self.end_ns)


def start_of(devices: Sequence[DeviceTrace]) -> int:
    """When the first event of several devices happened, in microseconds since the epoch."""
    return min(
        (int(np.clip(device.clock_us[0], 0, _LATEST_US)) for device in devices if device.is_timed),
        default=0,
    )


def clock_of(device: DeviceTrace, start_us: int) -> Clock:
    """The clock of a device whose beginning is ``start_us``."""
    count = len(device.events)
    if not device.is_timed:
        return Clock(np.arange(count, dtype=np.int64) * 1000, start_us, False)
    times = np.clip(np.clip(device.clock_us, 0, _LATEST_US) - start_us, 0, _LONGEST_US)
    first = np.flatnonzero(np.append(True, times[1:] != times[:-1]))
    alike = np.diff(np.append(first, count))
    place = np.arange(count) - np.repeat(first, alike)
    return Clock(times * 1000 + place * 1000 // np.repeat(alike, alike), start_us, True)
