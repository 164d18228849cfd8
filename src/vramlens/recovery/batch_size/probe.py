"""A probe: one training step of a given size, measured phase by phase, that leaves the model as
it was.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vramlens.recovery.batch_size.peak_fit import Probe
from vramlens.recovery.losses.part_losses import LossFunction, loss_of
from vramlens.recovery.memory_errors import OutOfMemoryCaught
from vramlens.recovery.meters import Meter
from vramlens.recovery.training.early_optimizer_state import make_state
from vramlens.recovery.training.training_state import TrainingState

if TYPE_CHECKING:
    import torch

MakeBatch = Callable[..., Any]
"""The user's: n -> a batch of n samples, the largest that training will see."""


class Prober:
    """Runs steps and measures them; ``close`` puts parameters, state, buffers and random numbers
    back.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss_fn: LossFunction,
        optimizer: torch.optim.Optimizer | None,
        meter: Meter,
    ) -> None:
        self._model, self._loss_fn, self._optimizer, self._meter = model, loss_fn, optimizer, meter
        self._state = TrainingState(model, optimizer)
        self.failures = 0
        self.persistent_bytes = meter.allocated_bytes()
        self.gradient_bytes = sum(p.numel() * p.element_size() for p in self._state.parameters)
        self._warm = False

    def close(self) -> None:
        """Everything as it was."""
        self._state.restore()
        self._meter.release()

    def probe(self, size: int, make_batch: Callable[[int], Any]) -> Probe | None:
        """One size, measured; None: it ran out of memory."""
        began = time.perf_counter()
        retries = 0
        measured: tuple[int, ...] = ()
        with OutOfMemoryCaught():
            if not self._warm:
                if self._optimizer is not None:
                    make_state(self._optimizer)
                # The first step loads libraries, makes workspaces and what is left of the state.
                self._step(size, make_batch)
                self._warm = True
                gc.collect()
                self._meter.release()
                self.persistent_bytes = self._meter.allocated_bytes()
            # As a program does that begins with this size: its optimizer's state comes into the
            # holes that the first step leaves, and what is lost between them is there in the
            # second, which is measured.
            self._state.restore_optimizer()
            gc.collect()
            self._meter.release()
            retries = self._meter.figures()[2]
            try:
                self._meter.note_requests()
                self._step(size, make_batch)
                measured = self._step(size, make_batch)
                requests = self._meter.noted_requests(size)
            finally:
                self._meter.stop_noting()
            retries = self._meter.figures()[2] - retries

        self._meter.release()
        if not measured:
            self.failures += 1
            self._state.forget_gradients()
            self._meter.release()
            return None
        forward, backward, step, batch, reserved, waste = measured
        seconds = time.perf_counter() - began
        return Probe(
            size=size,
            forward_bytes=forward,
            backward_bytes=backward,
            step_bytes=step,
            batch_bytes=batch,
            reserved_bytes=reserved,
            waste_bytes=waste,
            retries=retries,
            seconds=seconds,
            requests=requests,
        )

    def _step(self, size: int, make_batch: Callable[[int], Any]) -> tuple[int, ...]:
        meter = self._meter
        before = meter.allocated_bytes()
        batch = make_batch(size)
        batch_bytes = max(0, meter.allocated_bytes() - before)
        meter.restart()
        loss = loss_of(self._loss_fn(self._model, batch)).mean
        forward, waste = meter.peak_bytes(), meter.waste_bytes()
        meter.restart()
        loss.backward()  # type: ignore[no-untyped-call]
        del loss
        backward = meter.peak_bytes()
        meter.restart()
        if self._optimizer is not None:
            self._optimizer.step()
        step = meter.peak_bytes()
        reserved = meter.reserved_bytes()
        self._state.forget_gradients()
        return forward, backward, step, batch_bytes, reserved, waste
