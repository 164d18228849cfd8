"""Hugging Face: ``watch(trainer)``, or ``MemoryCallback`` for ``Trainer(callbacks=[...])``.

It begins with training, steps with every step, and adds its scalars to what the trainer logs. The
trainer hands its logs to its callbacks in order, those for ``report_to`` before those of the
program: this one moves to the front when training begins, so that the scalars go wherever
``report_to`` says. The class is made when it is first asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from vramlens.capture.warn import harmless
from vramlens.integrations.shared.extras import need
from vramlens.integrations.shared.kept_artifacts import handles_of_process
from vramlens.integrations.shared.loop_monitor import LoopMonitor
from vramlens.integrations.shared.training_callback import (
    TrainingCallback,
    UncaughtError,
    made_when_asked_for,
)

__all__ = ["MemoryCallback", "watch"]  # noqa: F822 - made by __getattr__


def watch(trainer: Any, **options: Any) -> Any:
    """Adds a ``MemoryCallback`` to a trainer, in front of those for ``report_to``, and gives it
    back.

    Args:
        trainer: a ``transformers.Trainer`` that has not begun.
        options: record, leaks and on_oom, as ``LoopMonitor`` says; and for ``vramlens.Monitor``.

    Raises:
        UsageError: transformers is not installed.
    """
    callback = __getattr__("MemoryCallback")(**options)
    trainer.callback_handler.callbacks.insert(0, callback)
    return callback


@harmless("finding the trainer's callbacks")
def _callbacks_beside(callback: object) -> list[Any] | None:
    """The list of callbacks that a callback is called from; None where nobody calls it so.

    The trainer hands no callback the others, and which of them come first decides who gets its
    scalars.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        callbacks = getattr(caller, "callbacks", None)
        if isinstance(callbacks, list) and hasattr(caller, "call_event"):
            return callbacks if callback in callbacks else None
        frame = frame.f_back
    return None


@harmless("logging memory")
def _add_scalars(logs: dict[str, float], loop: LoopMonitor, *, is_first_rank: bool) -> None:
    # Asked for on every rank: each leaves its peak for rank 0, which logs those of all.
    values = loop.scalars()
    if is_first_rank:
        logs.update(values)


def _handles(callbacks: Iterable[Any]) -> Iterator[object]:
    """Yields what reaches the runs of the trackers that the trainer reports to."""
    writers = (getattr(callback, "tb_writer", None) for callback in callbacks)
    yield from (writer for writer in writers if writer is not None)
    yield from handles_of_process()


def _callback_class() -> type:
    base: Any = need("transformers", "transformers", "transformers").TrainerCallback

    class MemoryCallback(TrainingCallback, base):  # type: ignore[misc]
        """Watches memory during training; ``callback.monitor`` is the monitor, ``callback.summary``
        what it saw.

        Scalars are added to the trainer's logs, as often as ``logging_steps`` says, for the
        callbacks behind this one.

        Args:
            options: record, leaks and on_oom, as ``LoopMonitor`` says; and for
                ``vramlens.Monitor``: interval, alerts, on_alert, command, webhook, quiet.
        """

        def __init__(self, **options: Any) -> None:
            super().__init__(0, **options)
            self._callbacks: list[Any] = []
            self._uncaught: UncaughtError | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **_others: Any) -> None:
            self._callbacks = _callbacks_beside(self) or []
            if self in self._callbacks:
                self._callbacks.remove(self)
                self._callbacks.insert(0, self)
            # The trainer tells its callbacks of no error.
            self._uncaught = UncaughtError(self._end)
            self._uncaught.begin()
            self._loop.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **_others: Any) -> None:
            self._loop.stepped(state.global_step)

        def on_log(
            self, args: Any, state: Any, control: Any, logs: Any = None, **_others: Any
        ) -> None:
            if logs is not None:
                _add_scalars(logs, self._loop, is_first_rank=state.is_world_process_zero)

        def on_train_end(self, args: Any, state: Any, control: Any, **_others: Any) -> None:
            self._end()

        @harmless("ending to watch memory")
        def _end(self, error: BaseException | None = None) -> None:
            if self._uncaught is not None:
                self._uncaught.end()
            callbacks, self._callbacks, self._uncaught = self._callbacks, [], None
            self.summary = self._loop.end(lambda: _handles(callbacks), error)

    return MemoryCallback


__getattr__ = made_when_asked_for(__name__, _callback_class)
