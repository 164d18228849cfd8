"""What the callbacks of trainers have in common.

The class of a callback derives from the trainer's own, so it is made when somebody asks for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from vramlens.capture.warn import harmless
from vramlens.integrations.shared.loop_monitor import LoopMonitor


class TrainingCallback:
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
        self._batches = 0

    @property
    def leaks(self) -> Any:
        """The report on leaks, once training has ended; None where none was asked for."""
        return self._loop.leaks

    def _stepped(self) -> dict[str, float]:
        """Counts a batch, and gives the scalars that are due; the trainer's own count stands still
        while gradients accumulate, and leaps where there are two optimizers.
        """
        self._batches += 1
        return self._loop.stepped(self._batches)


def made_when_asked_for(module: str, make: Callable[[], type]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module that has a class ``MemoryCallback``."""

    def attribute(name: str) -> Any:
        if name != "MemoryCallback":
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        callback = make()
        callback.__module__, callback.__qualname__ = module, name  # so that it can be pickled
        setattr(sys.modules[module], name, callback)
        return callback

    return attribute


class UncaughtError:
    """Hears of the error that ends the program, before Python prints it."""

    def __init__(self, listener: Callable[[BaseException], object]) -> None:
        self._listener = harmless("reporting an uncaught error")(listener)
        self._before = sys.excepthook

    def begin(self) -> None:
        """Begins to listen; whoever listened before is called as ever."""
        self._before = sys.excepthook
        sys.excepthook = self._hear

    def end(self) -> None:
        """Listens no longer, where nobody else has come between."""
        if sys.excepthook == self._hear:
            sys.excepthook = self._before

    def _hear(
        self,
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType | None,
    ) -> None:
        self._listener(error)
        self._before(kind, error, traceback)
