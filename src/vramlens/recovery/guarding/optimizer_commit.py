"""The commit: one optimizer step for all parts, outside of what is retried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramlens.errors import UsageError
from vramlens.recovery.memory_errors import OutOfMemoryCaught
from vramlens.recovery.meters import Meter
from vramlens.recovery.training.early_optimizer_state import (
    drop_state,
    make_state,
    size_of_state_to_come,
    state_bytes,
)
from vramlens.recovery.training.optimizer_values import Backup, StepValues
from vramlens.units import format_size

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

Note = Callable[..., None]


def step_failed(text: str) -> RuntimeError:
    """The error for a step that was left half done; an out-of-memory error that must not be
    retried.
    """
    error = torch.OutOfMemoryError(text)
    error.vramlens_half_done = True  # type: ignore[attr-defined]
    return error


def is_half_done(error: BaseException) -> bool:
    """Whether it is one of those."""
    return getattr(error, "vramlens_half_done", False)


@dataclass(frozen=True, slots=True)
class StepOptions:
    """How the optimizer steps.

    Attributes:
        clip: the largest norm of all gradients together, or a function to call before the step.
        backup: copy parameters and state to the host before each step.
    """

    clip: float | Callable[[], Any] | None
    backup: bool


class Committing:
    """Steps the optimizer.

    Its state is made before the first forward, so that the first step needs no more room than the
    others. A step that runs out of memory is repeated only if nothing had changed yet (values
    tell), or after all was put back from a backup; else it is an error that says so. Unscaling and
    clipping change gradients only: a failure there is one of the batch, which is run again from its
        beginning.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | None,
        scaler: Any,
        parameters: Sequence[torch.nn.Parameter],
        *,
        options: StepOptions,
        meter: Meter,
        note: Note,
    ) -> None:
        if optimizer is not None and isinstance(optimizer, torch.optim.LBFGS):
            raise UsageError(
                "guard: LBFGS calls the loss itself, several times per step: use guard(model, "
                "None) and step the optimizer yourself"
            )
        if (own_scaler := _scaler_of(optimizer)) is not None and own_scaler is not scaler:
            raise UsageError(
                f"guard: this {type(optimizer).__name__} divides gradients by the scale of its own"
                " scaler, which losses in the guard do not have: guard(model, optimizer.optimizer,"
                " scaler), with that scaler"
            )
        self._optimizer, self._scaler, self._parameters = optimizer, scaler, parameters
        self._meter, self._clip, self._backup, self._note = (
            meter,
            options.clip,
            options.backup,
            note,
        )
        self._prepared = self._stepped = False
        self._made: list[torch.Tensor] = []
        self._reserved: torch.Tensor | None = None
        self._values = StepValues(optimizer, parameters) if optimizer is not None else None

    def prepare(self) -> None:
        """Makes the optimizer's state, or holds the room for it, before the first forward."""
        if self._prepared or self._optimizer is None:
            return
        self._prepared = True
        for last in (False, True):
            with OutOfMemoryCaught() as caught:
                self._made = make_state(self._optimizer)
                self._reserve(size_of_state_to_come(self._optimizer))
                break
            self._note("caught", "out of memory while the optimizer state was created")
            self._meter.release()
            if last:
                raise torch.OutOfMemoryError(
                    "vramlens guard: the optimizer state does not fit next to the model, and a "
                    "split does not help; use an optimizer with less state, or a smaller "
                    f"model\nPyTorch: {caught.text}"
                )
        if self._made:
            size = state_bytes(self._optimizer)
            self._note(
                "note",
                f"created {format_size(size)} of optimizer state before the first step",
                size=size,
            )

    def scale(self) -> float:
        """What the scaler multiplies losses by now."""
        return scale_of(self._scaler)

    def forget(self) -> None:
        """Drops what a scaler noted about gradients that are gone, and a scale that it had only
        begun to make: memory ran out before the tracker that belongs to it.
        """
        states = getattr(self._scaler, "_per_optimizer_states", None)
        if states is not None:
            states.clear()
        if hasattr(self._scaler, "_scale") and getattr(self._scaler, "_growth_tracker", 0) is None:
            self._scaler._scale = None

    @property
    def finishes_gradients(self) -> bool:
        """Whether gradients are unscaled or clipped before the step."""
        return self._optimizer is not None and (self._clip is not None or self._unscales_first)

    @property
    def _unscales_first(self) -> bool:
        """Whether gradients are unscaled before the step; a fused optimizer does it in its own
        kernel.
        """
        return self._scaler is not None and not getattr(
            self._optimizer, "_step_supports_amp_scaling", False
        )

    def finish_gradients(self) -> None:
        """Unscales and clips."""
        if not self.finishes_gradients:
            return
        if self._scaler is not None and self._scaler.is_enabled():
            self._scaler.unscale_(self._optimizer)
        if callable(self._clip):
            self._clip()
        elif self._clip is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._clip)

    def ease(self) -> None:
        """Lets later steps do with less room."""
        self._meter.release()
        _one_by_one(self._optimizer)

    def commit(self) -> None:
        """Steps, and sets gradients to None.

        Raises:
            torch.OutOfMemoryError: it ran out of memory after it had begun to change something, or
                three times.
        """
        optimizer = self._optimizer
        if optimizer is None:
            return
        if not self._stepped:
            # Parameters that no loss reached get no state, as without the guard.
            drop_state(optimizer, [parameter for parameter in self._made if parameter.grad is None])
            self._made, self._reserved = [], None
        self._step_carefully(optimizer)
        self._stepped = True
        if self._scaler is not None:
            self._scaler.update()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        for parameter in self._parameters:
            parameter.grad = None

    def _step_carefully(self, optimizer: torch.optim.Optimizer) -> None:
        assert self._values is not None
        backup = Backup(optimizer) if self._backup else None
        if backup is None and not self._values.save():
            self._note(
                "caught", "out of memory while the values before the optimizer step were copied"
            )
        stages = self._stages()
        for attempt in range(3):
            with OutOfMemoryCaught() as caught:
                if self._scaler is not None:
                    self._scaler.step(optimizer)
                else:
                    optimizer.step()
                return
            done = self._undone(backup, caught.text)
            if attempt < 2:
                self._back_to(stages)
                self._note("step", f"out of memory in the optimizer's step; {done}: repeated")
                self.ease()
        raise torch.OutOfMemoryError(
            "vramlens guard: the optimizer's step ran out of memory three times; parameters "
            "are the same as before this step. Use an optimizer with less state, or a smaller "
            f"batch\nPyTorch: {caught.text}"
        )

    def _undone(self, backup: Backup | None, text: str) -> str:
        """Why the step can be repeated.

        Raises:
            torch.OutOfMemoryError: it had begun, or nothing tells whether it had.
        """
        if backup is not None:
            backup.restore()
            return "restored from the copy on the host"
        assert self._values is not None
        changed = self._values.changed()
        if changed is False:
            return "nothing had changed yet"
        raise (
            _half_updated(text)
            if changed
            else _perhaps_updated(text, type(self._optimizer).__name__)
        )

    def _stages(self) -> dict[Any, Any]:
        """How far a scaler has come with each optimizer."""
        states = getattr(self._scaler, "_per_optimizer_states", None) or {}
        return {key: state.get("stage") for key, state in states.items()}

    def _back_to(self, stages: dict[Any, Any]) -> None:
        """Has a scaler allow another step with the same gradients, which are unscaled or not as
        before.
        """
        states = getattr(self._scaler, "_per_optimizer_states", None) or {}
        for key in list(states):
            if key in stages:
                states[key]["stage"] = stages[key]
            else:
                del states[key]
        if self._scaler is not None:
            for name in (
                "grad_scale",
                "found_inf",
            ):  # left behind by a fused step; the next would multiply them
                vars(self._optimizer).pop(name, None)

    def _reserve(self, size: int) -> None:
        """Holds the room for state that the first step itself will make (SGD's momentum)."""
        device = self._parameters[0].device
        if size and device.type != "cpu":
            self._reserved = torch.empty(size, dtype=torch.uint8, device=device)


def scale_of(scaler: Any) -> float:
    """What a gradient scaler multiplies losses by now; 1 without one."""
    current = getattr(scaler, "get_scale", None)
    return 1.0 if current is None else float(current())


def _scaler_of(optimizer: Any) -> Any:
    """The scaler that a library's wrapper of an optimizer steps through (accelerate's,
    Lightning's); None: none.
    """
    plugin = getattr(getattr(optimizer, "_strategy", None), "precision_plugin", None)
    for holder in (optimizer, plugin):
        scaler = getattr(holder, "scaler", None)
        if hasattr(scaler, "unscale_") and getattr(scaler, "is_enabled", lambda: True)():
            return scaler
    return None


def _half_updated(text: str) -> RuntimeError:
    return step_failed(
        "vramlens guard: the optimizer's step ran out of memory after it had started to change "
        "the model, so parameters are only partly updated. Go back to your last checkpoint; "
        "guard(..., step_backup=True) can undo this, and foreach=False needs less "
        f"memory\nPyTorch: {text}"
    )


def _perhaps_updated(text: str, optimizer: str) -> RuntimeError:
    return step_failed(
        "vramlens guard: the optimizer's step ran out of memory, and it is unknown whether "
        f"this {optimizer} had started to change the model: parameters may be partly updated. "
        "Go back to your last checkpoint; guard(..., step_backup=True) can undo this\n"
        f"PyTorch: {text}"
    )


def _one_by_one(optimizer: Any) -> None:
    """From now on one parameter after the other: no temporaries for all of them at once."""
    for group in optimizer.param_groups if optimizer is not None else ():
        if (
            group.get("foreach", True) is not False
            and not group.get("fused")
            and "foreach" in group
        ):
            group["foreach"] = False
