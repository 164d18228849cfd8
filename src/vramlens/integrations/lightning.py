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
from vramlens.integrations.shared.training_callback import TrainingCallback, made_when_asked_for

__all__ = ["MemoryCallback"]  # noqa: F822 - made by __getattr__


@harmless("logging memory")
def _log(trainer: Any, values: dict[str, float]) -> None:
    for logger in trainer.loggers:
        logger.log_metrics(values, step=trainer.global_step)


def _callback_class() -> type:
    package = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
    base: Any = need(package, "lightning", "Lightning").Callback

    class MemoryCallback(TrainingCallback, base):  # type: ignore[misc]
        __doc__ = TrainingCallback.__doc__

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

    return MemoryCallback


__getattr__ = made_when_asked_for(__name__, _callback_class)
