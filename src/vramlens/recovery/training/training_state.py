"""A training's state, kept while steps are tried that must leave nothing behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramlens.recovery.training.optimizer_values import Backup
from vramlens.recovery.training.rollback import Buffers, Gradients, RandomState

if TYPE_CHECKING:
    import torch


class TrainingState:
    """Parameters, the optimizer's state, gradients, buffers and random numbers as they were when
    this was made.

    From then on gradients are None.

    Attributes:
        parameters: those that require a gradient.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._gradients = Gradients(self.parameters)
        self._random = RandomState({parameter.device for parameter in self.parameters})
        self._buffers = Buffers(model, all_of_them=True)
        self._buffers.save()
        self._backup = Backup(optimizer) if optimizer is not None else None
        self.forget_gradients()

    def forget_gradients(self) -> None:
        """Sets them to None."""
        for parameter in self.parameters:
            parameter.grad = None

    def restore_optimizer(self) -> None:
        """Parameters and the optimizer's state back to what they were."""
        if self._backup is not None:
            self._backup.restore()

    def restore(self) -> None:
        """Everything back to what it was."""
        self.restore_optimizer()
        self._gradients.restore()
        self._buffers.restore()
        self._random.restore()
