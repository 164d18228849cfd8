"""Composer: ``MemoryCallback`` for ``Trainer(callbacks=[...])``.

It begins with ``fit``, steps with every batch, logs scalars to all that the trainer logs to, and
ends however training ends. The class is made when it is first asked for.
"""

from __future__ import annotations

from typing import Any

from vramlens.capture.warn import harmless
from vramlens.integrations.shared.extras import need
from vramlens.integrations.shared.kept_artifacts import handles_of_process
from vramlens.integrations.shared.training_callback import (
    TrainingCallback,
    UncaughtError,
    made_when_asked_for,
)

__all__ = ["MemoryCallback"]  # noqa: F822 - made by __getattr__


@harmless("logging memory")
def _log(logger: Any, values: dict[str, float]) -> None:
    logger.log_metrics(values)  # under the trainer's own step


def _callback_class() -> type:
    base: Any = need("composer", "composer", "Composer").Callback

    class MemoryCallback(TrainingCallback, base):  # type: ignore[misc]
        __doc__ = TrainingCallback.__doc__

        def __init__(self, every: int = 50, **options: Any) -> None:
            super().__init__(every, **options)
            self._uncaught = UncaughtError(self._end)

        def fit_start(self, state: Any, logger: Any) -> None:
            self._uncaught.begin()
            self._loop.begin()

        def batch_end(self, state: Any, logger: Any) -> None:
            values = self._stepped()
            if values:
                _log(logger, values)

        def fit_end(self, state: Any, logger: Any) -> None:
            self._end()

        @harmless("ending to watch memory")
        def _end(self, error: BaseException | None = None) -> None:
            self._uncaught.end()
            self.summary = self._loop.end(handles_of_process, error)

    return MemoryCallback


__getattr__ = made_when_asked_for(__name__, _callback_class)
