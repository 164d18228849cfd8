"""The start of a step: all that an attempt may change, as it was before the first batch."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vramlens.recovery.losses.loss_form import PlainValues
from vramlens.recovery.meters import Meter
from vramlens.recovery.training.rollback import Buffers, Gradients, RandomState

if TYPE_CHECKING:
    import torch

_SLACK_BYTES = 2 * 1024**2


class StepStart:
    """A model, its gradients, random numbers and the plain values that losses read, at the start.

    Attributes:
        buffers: of the model.
        model_values: the plain values that the model's own modules read.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        parameters: Sequence[torch.nn.Parameter],
        devices: Sequence[torch.device],
        meter: Meter,
    ) -> None:
        self.buffers = Buffers(model)
        self.model_values = PlainValues(None, model)
        self._parameters = parameters
        self._devices = devices
        self._meter = meter
        self._values_by_loss: weakref.WeakKeyDictionary[Any, PlainValues] = (
            weakref.WeakKeyDictionary()
        )
        self._loss_values: list[PlainValues] = []
        self._random: RandomState | None = None
        self._gradients: Gradients | None = None
        self._allocated_bytes = 0

    def note(self, share_buffers: Callable[[Sequence[torch.Tensor]], None]) -> None:
        """Notes how everything is; ranks share their buffers before these are saved."""
        self._random = RandomState(self._devices)
        share_buffers(self.buffers.tensors())
        self.buffers.save()
        self.model_values.save()
        self._gradients = Gradients(self._parameters)
        self._allocated_bytes = self._meter.allocated_bytes()
        self._loss_values.clear()

    def note_loss_values(self, loss_fn: Any) -> None:
        """Keeps the plain values that a loss function reads, so that a repeated call finds them
        as they were.
        """
        values = None
        # Not everything that can be called can be hashed, or held weakly.
        with contextlib.suppress(TypeError):
            values = self._values_by_loss.get(loss_fn)
        if values is None:
            values = PlainValues(loss_fn, None)
            with contextlib.suppress(TypeError):
                self._values_by_loss[loss_fn] = values
        values.save()
        self._loss_values.append(values)

    def forget_loss_values(self) -> None:
        """Lets go of the values of loss functions: the step is committed."""
        self._loss_values.clear()

    def restore(self) -> None:
        """Puts everything back.

        Raises:
            BuffersLost: a large buffer cannot be put back.
        """
        assert self._gradients is not None
        assert self._random is not None
        self._gradients.restore()
        self.model_values.restore()
        for values in self._loss_values:
            values.restore()
        self.buffers.restore()
        self._random.restore()

    def leftover_bytes(self) -> int:
        """The bytes of a failed attempt that have not come back; 0 where these are few."""
        leftover = self._meter.allocated_bytes() - self._allocated_bytes
        if leftover > _SLACK_BYTES:  # in cycles, perhaps: collecting takes a while, so only then
            gc.collect()
            self._meter.release()
            leftover = self._meter.allocated_bytes() - self._allocated_bytes
        return leftover if leftover > _SLACK_BYTES else 0
