"""Shared by the callbacks of all training loops: a monitor that steps with the loop, and
scalars every so often.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vramlens.errors import UsageError
from vramlens.integrations.scalars import scalars
from vramlens.monitor import Monitor, Summary


class LoopMonitor:
    """A monitor that follows a training loop.

    Attributes:
        monitor: the monitor.
    """

    def __init__(
        self, every: int = 50, interval: float = 1.0, alerts: Iterable[str] = (), **options: Any
    ) -> None:
        """Prepares.

        Args:
            every: log scalars after so many steps; 0 is never.
            interval, alerts, options: for the ``Monitor``.
        """
        if every < 0:
            raise UsageError(f"every={every}: use a number of steps, or 0 for never")
        self.every = every
        self.monitor = Monitor(interval, alerts=alerts, **options)

    def begin(self) -> None:
        """Begins to watch."""
        self.monitor.start()

    def end(self) -> Summary:
        """Ends, and gives the summary."""
        self.monitor.stop()
        return self.monitor.summary()

    def stepped(self, count: int) -> dict[str, float]:
        """Ends a step; the scalars where it is time to log them, else nothing."""
        self.monitor.step()
        if not self.every or count % self.every:
            return {}
        return scalars(self.monitor)
