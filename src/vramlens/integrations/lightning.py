"""Lightning: ``MemoryCallback`` for ``Trainer(callbacks=[...])``, of lightning or of
pytorch_lightning.

It begins with ``fit``, steps with every batch, logs scalars with the trainer's loggers on rank 0,
and ends however training ends. The class is made when it is first asked for, from the package that
the program has imported.
"""

from __future__ import annotations

import sys
from typing import Any

from vramlens.capture.warn import harmless
from vramlens.integrations.shared.extras import need
from vramlens.integrations.shared.kept_artifacts import handles_of_loggers
from vramlens.integrations.shared.training import LoopMonitor

__all__ = ["MemoryCallback"]  # noqa: F822 - made by __getattr__


def __getattr__(name: str) -> Any:
    if name != "MemoryCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    callback = globals()[name] = _made()
    return callback


@harmless("logging memory")
def _log(trainer: Any, values: dict[str, float]) -> None:
    for logger in trainer.loggers:
        logger.log_metrics(values, step=trainer.global_step)


def _made() -> type:
    package = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
    base: Any = need(package, "lightning", "Lightning").Callback

    class MemoryCallback(base):  # type: ignore[misc]
        """Watches memory during training; ``callback.monitor`` is the monitor, ``callback.summary``
        what it saw.

        Args:
            every: log scalars after so many batches, under the trainer's step; 0 is never.
            options: record, leaks and on_oom, as ``LoopMonitor`` says; and for
                ``vramlens.Monitor``: interval, alerts, on_alert, command, webhook, quiet.
        """

        def __init__(self, every: int = 50, **options: Any) -> None:
            super().__init__()
            self._loop = LoopMonitor(every, **options)
            self.monitor = self._loop.monitor
            self.summary: Any = None
            self.leaks: Any = None
            self._batches = 0

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            self._loop.begin()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_batch: Any) -> None:
            # The trainer's own count stands still while gradients accumulate, and leaps where there
            # are two optimizers.
            self._batches += 1
            values = self._loop.stepped(self._batches)
            if values and trainer.is_global_zero:
                _log(trainer, values)

        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
            self._end(trainer)

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self._end(trainer, exception)

        @harmless("ending to watch memory")
        def _end(self, trainer: Any, error: BaseException | None = None) -> None:
            self.summary = self._loop.end(lambda: handles_of_loggers(trainer.loggers), error)
            self.leaks = self._loop.leaks

    MemoryCallback.__module__, MemoryCallback.__qualname__ = (
        __name__,
        "MemoryCallback",
    )  # so that it can be pickled
    return MemoryCallback
