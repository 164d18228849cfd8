"""The whole batch: its loss beside those of its parts, without gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from vramlens.recovery.losses.loss_calls import watched
from vramlens.recovery.losses.part_losses import Loss, Weights, loss_of
from vramlens.recovery.memory_errors import OUT_OF_MEMORY, STICKY, kind_of, let_go
from vramlens.recovery.splitting.batch_parts import BatchSamples, ranges
from vramlens.recovery.splitting.gradient_runs import CheckedTraining
from vramlens.recovery.training.rollback import Buffers, RandomState

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch


class BatchComparison:
    """What compares a batch with its parts.

    Args:
        buffers, random: as they were before, saved.
    """

    def __init__(
        self,
        training: CheckedTraining,
        samples: BatchSamples,
        buffers: Buffers,
        random: RandomState,
    ) -> None:
        self._training = training
        self._samples = samples
        self._buffers = buffers
        self._random = random


class WholeComparison(BatchComparison):
    """Compares losses of a batch's parts with the loss of the batch.

    The parts are those that it is to be split into, and three others, of which one has a single
    sample.
    """

    def fitting(self, ways: list[Weights], tolerance: float) -> Weights | str:
        """The first weights by which the losses of the parts make that of the batch; else, in
        words, what they make.

        Empty where it could not be tried: there is no room, or the loss needs gradients itself.
        """
        try:
            return self._fitting(ways, tolerance)
        except Exception as error:
            if kind_of(error) == STICKY:
                raise
            if kind_of(error) == OUT_OF_MEMORY:
                self._training.clean()
            let_go(error)
        return ""

    def _fitting(self, ways: list[Weights], tolerance: float) -> Weights | str:
        loss = float(self._loss_of(self._samples.part(0, self._samples.count)).mean)
        for bounds in self._divisions():
            ways = self._fitting_parts(bounds, ways, loss, tolerance)
            if not ways:
                return f"the loss of the whole batch is {loss:.6g}, and its parts do not make it"
        return ways[0] if math.isfinite(loss) else ""

    def _divisions(self) -> list[list[tuple[int, int]]]:
        """The ways to divide the batch, each as the bounds of its parts."""
        count, part_size = self._samples.count, self._training.part_size
        # One sample alone: by chance it hardly has the average of the others.
        middle = 1 + (count - 1) // 2
        divisions = [[(0, 1), (1, middle), (middle, count)]]
        if part_size is not None and part_size < count:
            divisions.append(ranges(count, part_size))
        return divisions

    def _fitting_parts(
        self, bounds: list[tuple[int, int]], ways: list[Weights], loss: float, tolerance: float
    ) -> list[Weights]:
        """Those weights by which the losses of these parts make that of the batch."""
        parts = [self._samples.part(start, stop) for start, stop in bounds]
        losses = list(map(self._loss_of, parts))
        if losses[0].count is None:
            sizes = [stop - start for start, stop in bounds]
            return [way for way in ways if _make(losses, way.of(parts, sizes), loss, tolerance)]
        total = sum(float(of_part.value) for of_part in losses)
        mean = total / sum(float(of_part.count or 1) for of_part in losses)
        return ways if abs(loss - mean) <= tolerance * abs(mean) else []

    def _loss_of(self, batch: Any) -> Loss:
        """The loss of a batch without gradients and dropout."""
        self._buffers.restore()
        self._random.restore()
        with torch.no_grad(), watched():
            loss = loss_of(self._training.loss_fn(self._training.model, batch))
        return Loss(loss.value.detach(), loss.count)


def _make(losses: list[Loss], shares: list[Any], expected: float, tolerance: float) -> bool:
    """Whether the losses of parts, each by its share, make that of the whole."""
    if not math.isfinite(expected):
        return True  # nothing to compare
    weighted = [
        float(loss.value) * float(share)
        for loss, share in zip(losses, shares, strict=True)
        if float(share)
    ]
    scale = max(abs(expected), sum(map(abs, weighted)))
    return abs(expected - sum(weighted)) <= tolerance * scale
