"""Samples: the counters every second or so, for the days that no ring of events can hold."""

from __future__ import annotations

import time
from typing import Any

_MOST = 4096


class Samples:
    """Rows of counters in bounded memory: when they are too many, every second one is dropped and
    the pace halved.

    Attributes:
        interval_s: seconds between two samples now.
    """

    COLUMNS = (
        "time_us",
        "step",
        "device",
        "allocated_bytes",
        "reserved_bytes",
        "free_bytes",
        "host_rss_bytes",
    )

    def __init__(self, interval_s: float = 1.0) -> None:
        self.interval_s = interval_s
        self._moments: list[list[tuple[int | None, ...]]] = []
        self._next = 0.0

    def is_due(self) -> bool:
        """True where the next sample's time has come."""
        return time.monotonic() >= self._next

    def add(
        self, step: int, devices: list[tuple[int, int, int, int | None]], host_rss_bytes: int | None
    ) -> None:
        """Keeps one moment.

        Args:
            step: steps ended so far.
            devices: device, allocated, reserved and free bytes of each.
            host_rss_bytes: the process's memory on the host.
        """
        self._next = time.monotonic() + self.interval_s
        now = time.time_ns() // 1000
        self._moments.append([(now, step, *figures, host_rss_bytes) for figures in devices])
        if len(self._moments) > _MOST:
            self._moments = self._moments[::2]
            self.interval_s *= 2

    def to_dict(self) -> dict[str, Any]:
        """For the recording."""
        rows = [row for moment in list(self._moments) for row in moment]
        return {"interval_s": self.interval_s, "columns": self.COLUMNS, "rows": rows}
