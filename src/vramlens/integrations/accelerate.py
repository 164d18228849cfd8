"""Accelerate: memory beside what ``accelerator.log`` logs, stepped by the program's own loop."""

from __future__ import annotations

from typing import Any

from vramlens.capture.warn import harmless
from vramlens.integrations.shared.kept_artifacts import handles_of_process
from vramlens.integrations.shared.loop_monitor import LoopMonitor
from vramlens.integrations.shared.training_callback import UncaughtError
from vramlens.monitor import Summary


class AcceleratorMemory:
    """Follows a loop that uses an ``Accelerator``:

        memory = AcceleratorMemory(accelerator)
        for batch in loader:
            ...
            memory.step()
        memory.finish()

    Attributes:
        monitor: the monitor.
    """

    def __init__(self, accelerator: Any, every: int = 50, **options: Any) -> None:
        """Begins to watch.

        Args:
            accelerator: the ``Accelerator``; its trackers get the scalars, on the main process.
            every: log scalars after so many steps; 0 is never.
            options: record, leaks and on_oom, as ``LoopMonitor`` says; and for
                ``vramlens.Monitor``: interval, alerts, on_alert, command, webhook, quiet.
        """
        self._accelerator, self._loop, self._count = accelerator, LoopMonitor(every, **options), 0
        self.monitor = self._loop.monitor
        self.leaks: Any = None
        self._uncaught = UncaughtError(self._failed)
        self._uncaught.begin()
        self._loop.begin()

    def step(self) -> None:
        """Ends a step; with gradient accumulation, only where the gradients were synchronised."""
        if not self._accelerator.sync_gradients:
            return
        self._count += 1
        values = self._loop.stepped(self._count)
        if values:
            self._log(values)

    @harmless("logging memory")
    def _log(self, values: dict[str, float]) -> None:
        self._accelerator.log(values, step=self._count)

    def finish(self) -> Summary:
        """Ends, and gives the summary."""
        return self._end()

    def _failed(self, error: BaseException) -> None:
        """Ends because of the error that ends the program."""
        self._end(error)

    def _end(self, error: BaseException | None = None) -> Summary:
        self._uncaught.end()
        summary = self._loop.end(self._handles, error)
        self.leaks = self._loop.leaks
        return summary

    def _handles(self) -> list[object]:
        """What reaches the runs of the accelerator's trackers."""
        trackers = getattr(self._accelerator, "trackers", ())
        writers = (getattr(tracker, "writer", None) for tracker in trackers)
        return [
            *(writer for writer in writers if hasattr(writer, "add_text")),
            *handles_of_process(),
        ]
