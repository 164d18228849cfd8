"""What the callbacks of trainers that call them after each batch have in common."""

from __future__ import annotations

from typing import Any

from vramlens.integrations.shared.loop_monitor import LoopMonitor


class BatchCallback:
    """Watches memory during training; ``callback.monitor`` is the monitor, ``callback.summary``
    what it saw.

    Args:
        every: log scalars after so many batches, under the trainer's step; 0 is never.
        options: record, leaks and on_oom, as ``LoopMonitor`` says; and for ``vramlens.Monitor``:
            interval, alerts, on_alert, command, webhook, quiet.
    """

    def __init__(self, every: int = 50, **options: Any) -> None:
        super().__init__()
        self._loop = LoopMonitor(every, **options)
        self.monitor = self._loop.monitor
        self.summary: Any = None
        self.leaks: Any = None
        self._batches = 0

    def _stepped(self) -> dict[str, float]:
        """Counts a batch, and gives the scalars that are due; the trainer's own count stands still
        while gradients accumulate, and leaps where there are two optimizers.
        """
        self._batches += 1
        return self._loop.stepped(self._batches)
