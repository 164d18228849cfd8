"""Hugging Face: ``watch(trainer)``, or ``MemoryCallback`` for ``Trainer(callbacks=[...])``.

It begins with training, steps with every step, and adds its scalars to what the trainer logs. The
trainer hands its logs to its callbacks in order, those for ``report_to`` before those of the
program: ``watch`` puts this one in front, so that the scalars go wherever ``report_to`` says. The
    class is made when it is first asked for.
"""

from __future__ import annotations

from typing import Any

from vramlens.integrations.extras import need
from vramlens.integrations.scalars import scalars
from vramlens.integrations.training import LoopMonitor

__all__ = ["MemoryCallback", "watch"]  # noqa: F822 - made by __getattr__


def __getattr__(name: str) -> Any:
    if name != "MemoryCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    callback = globals()[name] = _made()
    return callback


def watch(trainer: Any, **options: Any) -> Any:
    """Adds a ``MemoryCallback`` to a trainer, in front of those for ``report_to``, and gives it
    back.

    Args:
        trainer: a ``transformers.Trainer`` that has not begun.
        options: for ``vramlens.Monitor``.

    Raises:
        UsageError: transformers is not installed.
    """
    callback = __getattr__("MemoryCallback")(**options)
    trainer.callback_handler.callbacks.insert(0, callback)
    return callback


def _made() -> type:
    base: Any = need("transformers", "transformers", "transformers").TrainerCallback

    class MemoryCallback(base):  # type: ignore[misc]
        """Watches memory during training; ``callback.monitor`` is the monitor, ``callback.summary``
        what it saw.

        Scalars are added to the trainer's logs, as often as ``logging_steps`` says, for the
        callbacks behind this one.

        Args:
            options: for ``vramlens.Monitor``: interval, alerts, on_alert, command, webhook, quiet.
        """

        def __init__(self, **options: Any) -> None:
            self._loop = LoopMonitor(0, **options)
            self.monitor = self._loop.monitor
            self.summary: Any = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **_others: Any) -> None:
            self._loop.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **_others: Any) -> None:
            self._loop.stepped(state.global_step)

        def on_log(
            self, args: Any, state: Any, control: Any, logs: Any = None, **_others: Any
        ) -> None:
            if logs is not None and state.is_world_process_zero:
                logs.update(scalars(self.monitor))

        def on_train_end(self, args: Any, state: Any, control: Any, **_others: Any) -> None:
            self.summary = self._loop.end()

    MemoryCallback.__module__, MemoryCallback.__qualname__ = (
        __name__,
        "MemoryCallback",
    )  # so that it can be pickled
    return MemoryCallback
