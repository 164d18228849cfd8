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
from vramlens.integrations.shared.batch_callback import BatchCallback
from vramlens.integrations.shared.extras import need
from vramlens.integrations.shared.kept_artifacts import handles_of_loggers

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

    class MemoryCallback(BatchCallback, base):  # type: ignore[misc]
        __doc__ = BatchCallback.__doc__

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            self._loop.begin()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_batch: Any) -> None:
            values = self._stepped()
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
