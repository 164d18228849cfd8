"""The guard for a Hugging Face Trainer: its own training step, run in parts when memory runs
out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from vramlens.errors import UsageError
from vramlens.recovery.guarding.guard import Guard, guard
from vramlens.recovery.guarding.guard_story import NO_OPTIMIZER, GuardReport
from vramlens.recovery.guarding.optimizer_commit import scale_of
from vramlens.units import counted

_NOT_HERE = ("clip", "scaler", "optimizer", "step_backup")


class TrainerGuard:
    """What ``guard_trainer`` gives.

    Attributes:
        guard: the guard; None until the first training step.
    """

    def __init__(self, trainer: Any, options: dict[str, Any]) -> None:
        self.guard: Guard | None = None
        self._trainer, self._options = trainer, options
        self._plain: Callable[..., Any] = trainer.training_step
        self._model: Any = None
        self._backward: dict[str, Any] = {}
        trainer.training_step = self._step

    def report(self) -> GuardReport:
        """What has happened so far; print it.

        Raises:
            UsageError: no training step has started.
        """
        if self.guard is None:
            raise UsageError(
                "guard_trainer: no training step has started: call trainer.train() first"
            )
        report = self.guard.report()
        events = tuple(
            event for event in report.events if event.text != NO_OPTIMIZER
        )  # the Trainer's steps
        return replace(report, events=events, trainer=True)

    def __repr__(self) -> str:
        return (
            "guard_trainer: no training step has started"
            if self.guard is None
            else self.report().headline
        )

    def detach(self) -> None:
        """Gives the trainer its own training step back."""
        self._trainer.__dict__.pop("training_step", None)

    def _step(self, model: Any, inputs: Any, *more: Any, **others: Any) -> Any:
        """In place of ``Trainer.training_step``: the same loss, the same gradients."""
        if self.guard is None or self._model is not model:
            model.train()  # as the Trainer's own does, before the guard looks
            self._model, self.guard = model, guard(model, scaler=self, **self._options)

        def loss_fn(inner: Any, part: Any) -> Any:
            with self._captured() as losses:
                self._plain(
                    inner, copy.copy(part), *more, **others
                )  # a copy: losses pop labels from it
            if len(losses) != 1:
                raise UsageError(
                    f"guard_trainer: the training_step of {type(self._trainer).__name__} called"
                    f" accelerator.backward {counted(len(losses), 'time')}, not once: call"
                    " vramlens.guard in your own training_step"
                )
            return losses[0]

        # The optimizer steps after the last of the accumulated batches: until then all can be run
        # again.
        commit = bool(getattr(self._trainer.accelerator, "sync_gradients", True))
        return self.guard.step(inputs, loss_fn, commit=commit)

    @contextmanager
    def _captured(self) -> Iterator[list[Any]]:
        """The losses that the Trainer takes to the backward, which waits."""
        accelerator = self._trainer.accelerator
        losses: list[Any] = []
        replaced = vars(accelerator).get("backward")

        def keep(loss: Any, **options: Any) -> None:
            losses.append(loss)
            self._backward = options

        accelerator.backward = keep
        try:
            yield losses
        finally:
            if replaced is None:
                del accelerator.backward  # the class's own again
            else:
                accelerator.backward = replaced

    def get_scale(self) -> float:
        """What the accelerator's scaler multiplies losses by; 1 where it has none."""
        return scale_of(getattr(self._trainer.accelerator, "scaler", None))

    def scale(self, loss: Any) -> _Backward:
        """What the guard calls before a backward, as of a ``GradScaler``: the accelerator's own
        follows.
        """
        return _Backward(self._trainer.accelerator, loss, self._backward)


class _Backward:
    """A loss whose ``backward`` is the accelerator's: with its scaler, and what else it does."""

    def __init__(self, accelerator: Any, loss: Any, options: dict[str, Any]) -> None:
        self._accelerator, self._loss, self._options = accelerator, loss, options

    def backward(self) -> None:
        self._accelerator.backward(self._loss, **self._options)


def guard_trainer(trainer: Any, **options: Any) -> TrainerGuard:
    """Has a ``transformers.Trainer`` survive out of memory in forward and backward: one line before
    ``train()``.

    The Trainer's own ``training_step`` computes each loss (also that of a subclass), its
    accelerator takes each
    backward: gradient accumulation, ``num_items_in_batch``, autocast and the collator stay what
    they are. How the losses of parts become the loss of the batch (means, or parts that add up, as
    with ``num_items_in_batch``) is found by the guard's check before the first split. The
    optimizer's step stays the Trainer's and is not guarded.

    Args:
        trainer: one that has not begun.
        options: for ``vramlens.guard``: threshold, count_fn, split, strict, verify, order,
            on_change, micro_batch, grow_after, meter.

    Raises:
        UsageError: it trains on several devices, or an option that is the Trainer's affair.
    """
    wrong = [name for name in _NOT_HERE if name in options]
    if wrong:
        raise UsageError(f"guard_trainer: {', '.join(wrong)}: the Trainer controls this")
    for name in ("accelerator", "training_step", "args"):
        if not hasattr(trainer, name):
            raise UsageError(
                f"guard_trainer: a {type(trainer).__name__} has no {name}: pass a "
                "transformers.Trainer"
            )
    ranks = max(getattr(trainer.args, "world_size", 1) or 1, getattr(trainer.args, "n_gpu", 1) or 1)
    if ranks > 1:
        raise UsageError(
            f"guard_trainer: this Trainer runs on {ranks} devices, but only one is supported; "
            "with several, write the loop with vramlens.guard(model, optimizer)"
        )
    if "training_step" in vars(trainer):
        raise UsageError("guard_trainer: this trainer's training_step was already replaced")
    return TrainerGuard(trainer, options)
