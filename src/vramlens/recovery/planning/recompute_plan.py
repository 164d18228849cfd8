"""A plan: which blocks to recompute so that training stays within a budget, chosen and verified
by measurement.
"""

from __future__ import annotations

import contextlib
import gc
import time
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from vramlens.analyses.finding import Finding
from vramlens.argument_types import (
    module,
    number_given,
    required_function,
    required_size,
    takes,
)
from vramlens.errors import UsageError
from vramlens.ground.verdict import Verdict
from vramlens.recovery.losses.part_losses import LossFunction, loss_of
from vramlens.recovery.memory_errors import OutOfMemoryCaught
from vramlens.recovery.meters import Meter, NoMeter, device_of, meter_of, not_counted
from vramlens.recovery.training.recompute import (
    Unit,
    checkpoint_module,
    offloaded,
    saved_bytes,
    uncheckpoint_module,
    units_of,
)
from vramlens.recovery.training.training_state import TrainingState
from vramlens.units import counted, format_size, size_in_bytes

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_TRIALS = 6


@dataclass(frozen=True, slots=True)
class Choice:
    """A block that could be recomputed.

    Attributes:
        saved_bytes: what its forward keeps for the backward.
        forward_ms: what making it again costs.
        chosen: whether the plan recomputes it.
    """

    name: str
    saved_bytes: int
    forward_ms: float
    chosen: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What to recompute; printed it says so in words. ``apply`` puts it into a model of the same
    names.

    Attributes:
        choices: all blocks, the most bytes a millisecond first.
        offload: whether what is left waits in host memory besides.
        budget_bytes, before_bytes, after_bytes: asked for; measured without and with the plan.
            Where that ran out of memory: None without, 0 with it.
        before_ms, after_ms: of a step.
        fits: whether the measured peak stays within the budget.
    """

    choices: tuple[Choice, ...]
    offload: bool
    budget_bytes: int
    before_bytes: int | None
    after_bytes: int
    before_ms: float | None
    after_ms: float
    fits: bool

    def apply(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model, its chosen blocks recomputed in the backward.

        Raises:
            UsageError: it has no such block; or the plan needs offload, which does not change a
                model.
        """
        modules = dict(model.named_modules())
        for choice in self.choices:
            if choice.chosen and choice.name not in modules:
                raise UsageError(
                    f"plan: the model has no block {choice.name}: this is not the model that "
                    "was measured"
                )
        for choice in self.choices:
            if choice.chosen:
                checkpoint_module(modules[choice.name])
        return model

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The answer as a claim."""
        verdict = Verdict.PROVEN
        return (
            Finding(
                id="plan" if self.fits else "plan_fails",
                verdict=verdict,
                title=self._headline(),
                bytes=self.after_bytes,
                place=None,
                evidence=(),
                fix=self._fix(),
            ),
        )

    def __str__(self) -> str:
        lines = [self._headline()]
        for choice in self.choices[:12]:
            mark = "recompute" if choice.chosen else "keep"
            lines.append(
                f"  {mark:9}  {format_size(choice.saved_bytes):>11}  {choice.forward_ms:7.2f} ms "
                f" {choice.name}"
            )
        if len(self.choices) > 12:
            lines.append(f"  ... {counted(len(self.choices) - 12, 'more block')} in .choices")
        return "\n".join([*lines, f"next: {self._fix()}"])

    def __repr__(self) -> str:
        return str(self)

    def _headline(self) -> str:
        count = sum(choice.chosen for choice in self.choices)
        change = f"{counted(count, 'block')} recomputed" + (
            ", the rest offloaded" if self.offload else ""
        )
        before = (
            "" if self.before_bytes is None else f" instead of {format_size(self.before_bytes)}"
        )
        slower = (
            ""
            if not self.before_ms
            else f", {100 * (self.after_ms / self.before_ms - 1):+.0f}% time"
        )
        if not self.fits:
            peak = (
                f"the peak is {format_size(self.after_bytes)}"
                if self.after_bytes
                else "it ran out of memory"
            )
            return (
                f"Nothing that was tried stays within {format_size(self.budget_bytes)}: with "
                f"{change}, {peak}."
            )
        return (
            f"With {change}, the measured peak is {format_size(self.after_bytes)}{before}{slower}."
        )

    def _fix(self) -> str:
        if not self.fits:
            return "a smaller batch: vramlens.guard(model, optimizer, micro_batch=...)"
        if not any(choice.chosen for choice in self.choices):
            return "nothing to do: it already fits"
        if self.offload:
            return (
                "plan.apply(model), and with torch.autograd.graph.save_on_cpu(pin_memory=True):"
                " around the forward"
            )
        return "plan.apply(model)"


@takes(
    model=module,
    make_batch=required_function,
    loss_fn=required_function,
    budget=required_size,
    batch=number_given,
)
def plan(
    model: torch.nn.Module,
    make_batch: Any,
    loss_fn: LossFunction,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    budget: int | str,
    batch: int,
    meter: Meter | None = None,
) -> Plan:
    """Which blocks to recompute (and whether to offload) so that a step stays within a budget.

    Bytes and milliseconds of each block are measured with a small batch; blocks are taken by bytes
    a millisecond until
    the estimate fits, and then the whole step is measured: more are taken until the *measured* peak
    fits, or fewer where there is room. The model, its gradients and the optimizer are left as they
    were.

    Args:
        make_batch: n -> a batch of n samples; ``batch``: how many in training.
        budget: bytes for the whole process, or as 16GiB.

    Raises:
        UsageError: no counter of bytes on this device, or the model has no blocks.
    """
    trained_on = device_of(model, "plan")
    counter = meter or meter_of(trained_on)
    if isinstance(counter, NoMeter):
        raise not_counted("plan", trained_on.type)
    budget_bytes = size_in_bytes(budget)
    units = units_of(model)
    if not units:
        raise UsageError("plan: the model has no blocks that can be recomputed one by one")
    trial = _Trial(
        model=model, make_batch=make_batch, loss_fn=loss_fn, optimizer=optimizer, meter=counter
    )
    try:
        before = trial.measured(batch)
        measured = trial.blocks(units, min(batch, 2), batch)
        if before is not None and before[0] <= budget_bytes:
            choices = tuple(Choice(u.name, u.saved_bytes, ms, False) for u, ms in measured)
            return Plan(
                choices=choices,
                offload=False,
                budget_bytes=budget_bytes,
                before_bytes=before[0],
                after_bytes=before[0],
                before_ms=before[1],
                after_ms=before[1],
                fits=True,
            )
        chosen_plan = _search(trial, measured, batch, budget_bytes, before)
    finally:
        trial.close()
    return chosen_plan


def _search(
    trial: _Trial,
    measured: list[tuple[Unit, float]],
    batch: int,
    budget_bytes: int,
    before: tuple[int, float] | None,
) -> Plan:
    """Bisection over how many blocks, in order of bytes a millisecond, each count measured."""
    order = sorted(measured, key=lambda pair: -pair[0].saved_bytes / max(pair[1], 1e-3))

    def run(count: int, offload: bool = False) -> tuple[int, float] | None:
        for unit, _ in order[:count]:
            checkpoint_module(unit.module)
        peak_and_time = trial.measured(batch, offload)
        for unit, _ in order[:count]:
            uncheckpoint_module(unit.module)
        return peak_and_time

    def fits(peak_and_time: tuple[int, float] | None) -> bool:
        return peak_and_time is not None and peak_and_time[0] <= budget_bytes

    low, high = 0, len(order)
    final = run(high)
    offload = not fits(final)
    if offload:
        final = run(high, True) or final
    before_bytes, before_ms = before or (None, None)
    middle = _blocks_that_free(order, before_bytes, budget_bytes)
    for _ in range(_TRIALS):
        if offload or high - low <= 1:
            break
        middle = min(max(middle, low + 1), high - 1)
        peak_and_time = run(middle)
        if fits(peak_and_time):
            high, final = middle, peak_and_time
        else:
            low = middle
        middle = (low + high) // 2
    after_bytes, after_ms = final or (0, 0.0)
    return Plan(
        choices=tuple(
            Choice(unit.name, unit.saved_bytes, ms, index < high)
            for index, (unit, ms) in enumerate(order)
        ),
        offload=offload,
        budget_bytes=budget_bytes,
        before_bytes=before_bytes,
        after_bytes=after_bytes,
        before_ms=before_ms,
        after_ms=after_ms,
        fits=fits(final),
    )


def _blocks_that_free(
    order: list[tuple[Unit, float]], before_bytes: int | None, budget_bytes: int
) -> int:
    """The number of blocks after which the step probably fits; all where it ran out of memory."""
    if before_bytes is None:
        return len(order)
    freed = accumulate((unit.saved_bytes for unit, _ in order), initial=0)
    return sum(1 for bytes_so_far in freed if bytes_so_far < before_bytes - budget_bytes)


class _Trial:
    """Steps that are measured and leave nothing behind."""

    def __init__(
        self, model: Any, make_batch: Any, loss_fn: LossFunction, optimizer: Any, meter: Meter
    ) -> None:
        self._model, self._make, self._loss_fn, self._optimizer = (
            model,
            make_batch,
            loss_fn,
            optimizer,
        )
        self._meter, self._state = meter, TrainingState(model, optimizer)
        self._parameters = self._state.parameters

    def close(self) -> None:
        self._state.restore()
        self._meter.release()

    def measured(self, size: int, offload: bool = False) -> tuple[int, float] | None:
        """Peak bytes and milliseconds of the second of two steps; None: out of memory."""
        with OutOfMemoryCaught():
            for _ in range(2):
                gc.collect()  # what earlier trials left in cycles
                self._meter.release()
                inputs = self._make(size)
                self._meter.restart()
                _wait(self._parameters[0])
                began = time.perf_counter()
                with offloaded(self._parameters) if offload else contextlib.nullcontext():
                    loss = loss_of(self._loss_fn(self._model, inputs)).mean
                loss.backward()  # type: ignore[no-untyped-call]
                del loss
                if self._optimizer is not None:
                    self._optimizer.step()
                self._state.forget_gradients()
                _wait(self._parameters[0])
            return self._meter.peak_bytes(), (time.perf_counter() - began) * 1e3
        self._state.forget_gradients()
        self._meter.release()
        return None

    def blocks(self, units: list[Unit], small: int, batch: int) -> list[tuple[Unit, float]]:
        """Each block with its bytes and milliseconds, scaled from a small batch to the whole
        one.
        """
        times: dict[str, float] = {unit.name: 0.0 for unit in units}
        begun: list[float] = []
        handles = []

        def ends(name: str) -> None:
            _wait(self._parameters[0])
            times[name] += (time.perf_counter() - begun.pop()) * 1e3

        def begins() -> None:
            _wait(self._parameters[0])
            begun.append(time.perf_counter())

        inputs = self._make(small)
        loss_of(self._loss_fn(self._model, inputs))  # the first call loads libraries
        for unit in units:
            handles.append(unit.module.register_forward_pre_hook(lambda *_: begins()))
            handles.append(unit.module.register_forward_hook(lambda *_, name=unit.name: ends(name)))
        try:
            loss_of(self._loss_fn(self._model, inputs))
        finally:
            for handle in handles:
                handle.remove()
        with saved_bytes(self._model, units) as bytes_by_unit:
            loss_of(self._loss_fn(self._model, inputs))
        share = batch / small
        return [
            (Unit(u.name, u.module, int(bytes_by_unit[u.name] * share)), times[u.name] * share)
            for u in units
        ]


def _wait(parameter: Any) -> None:
    if parameter.is_cuda:
        torch.cuda.synchronize(parameter.device)
