"""The commit: one optimizer step for all parts, outside of what is retried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vramlens.errors import UsageError
from vramlens.recovery.failures import OUT_OF_MEMORY, failure_of, kind_of, let_go
from vramlens.recovery.meters import Meter
from vramlens.recovery.optimizer_state import (
    Backup,
    drop_state,
    make_state,
    size_of_state_to_come,
    state_bytes,
    state_tensors,
)
from vramlens.recovery.rollback import Versions
from vramlens.units import format_size

if TYPE_CHECKING:
    import torch
else:
    from vramlens.recovery.late_torch import torch

Note = Callable[..., None]


def step_failed(text: str) -> RuntimeError:
    """The error for a step that was left half done; an out-of-memory error that must not be retried."""
    error = torch.OutOfMemoryError(text)
    error.vramlens_half_done = True  # type: ignore[attr-defined]
    return error


def is_half_done(error: BaseException) -> bool:
    """Whether it is one of those."""
    return getattr(error, "vramlens_half_done", False)


class Committing:
    """Steps the optimizer.

    Its state is made before the first forward, so that the first step needs no more room than the others. A step that
    runs out of memory is repeated only if nothing was changed yet (PyTorch's version counters tell), or after all was
    put back from a backup; else it is an error that says so.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | None,
        scaler: Any,
        parameters: Sequence[torch.nn.Parameter],
        meter: Meter,
        clip: float | Callable[[], Any] | None,
        backup: bool,
        note: Note,
    ) -> None:
        if optimizer is not None and isinstance(optimizer, torch.optim.LBFGS):
            raise UsageError("guard: LBFGS calls the loss itself, several times a step: guard(model, None) and step it")
        if (own := _scaler_of(optimizer)) is not None and own is not scaler:
            raise UsageError(
                f"guard: this {type(optimizer).__name__} divides gradients by the scale of a scaler of its own, which"
                " losses in the guard do not have: guard(model, optimizer.optimizer, scaler), with that scaler"
            )
        self._optimizer, self._scaler, self._parameters = optimizer, scaler, parameters
        self._meter, self._clip, self._backup, self._note = meter, clip, backup, note
        self._prepared = self._stepped = False
        self._made: list[torch.Tensor] = []
        self._reserved: torch.Tensor | None = None
        self._watched: list[torch.Tensor] | None = None

    def prepare(self) -> None:
        """Makes the optimizer's state, or holds the room for it, before the first forward."""
        if self._prepared or self._optimizer is None:
            return
        self._prepared = True
        for last in (False, True):
            try:
                self._made = make_state(self._optimizer)
                self._reserve(size_of_state_to_come(self._optimizer))
                break
            except Exception as error:
                if kind_of(error) != OUT_OF_MEMORY:
                    raise
                text = failure_of(error).text
                let_go(error)
            self._meter.release()
            if last:
                raise torch.OutOfMemoryError(
                    "vramlens guard: there is no room for the optimizer's state beside the model: no split helps; use"
                    f" an optimizer with less state, or a smaller model\nPyTorch: {text}"
                )
        if self._made:
            size = state_bytes(self._optimizer)
            self._note("note", f"made {format_size(size)} of optimizer state before the first step", size=size)

    def scale(self) -> float:
        """What the scaler multiplies losses by now."""
        return scale_of(self._scaler)

    def forget(self) -> None:
        """Drops what a scaler noted about gradients that are gone."""
        states = getattr(self._scaler, "_per_optimizer_states", None)
        if states is not None:
            states.clear()

    def commit(self) -> None:
        """Unscales, clips, steps, and sets gradients to None.

        Raises:
            torch.OutOfMemoryError: it ran out of memory after it had begun to change something.
        """
        optimizer = self._optimizer
        if optimizer is None:
            return
        if not self._stepped:
            # Parameters that no loss reached get no state, as without the guard.
            drop_state(optimizer, [parameter for parameter in self._made if parameter.grad is None])
            self._made, self._reserved = [], None
        self._carefully(self._clip_gradients, lambda: [p.grad for p in self._parameters if p.grad is not None], "clip")
        watched = self._watched
        if watched is None:
            watched = [*self._parameters, *state_tensors(optimizer)]
        self._carefully(self._step, lambda: watched, "step")
        if self._watched is None or not self._stepped:
            self._watched = [*self._parameters, *state_tensors(optimizer)]
        self._stepped = True
        if self._scaler is not None:
            self._scaler.update()
        for parameter in self._parameters:
            parameter.grad = None

    def _clip_gradients(self) -> None:
        if self._clip is None:
            return
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        if callable(self._clip):
            self._clip()
        else:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._clip)

    def _step(self) -> None:
        assert self._optimizer is not None
        if self._scaler is not None:
            self._scaler.step(self._optimizer)
        else:
            self._optimizer.step()

    def _carefully(self, act: Callable[[], None], touched: Callable[[], list[Any]], doing: str) -> None:
        if doing == "clip" and self._clip is None:
            return
        versions = Versions(touched())
        backup = Backup(self._optimizer) if self._backup and doing == "step" and self._optimizer is not None else None
        for attempt in range(3):
            try:
                act()
                return
            except Exception as error:
                if kind_of(error) != OUT_OF_MEMORY:
                    raise
                text = failure_of(error).text
                let_go(error)
            if backup is not None:
                backup.restore()
            elif versions.changed():
                if doing == "step":
                    raise _half_updated(text)
                raise torch.OutOfMemoryError(
                    f"vramlens guard: clipping ran out of memory; parameters are as before this step, gradients are not"
                    f"\nPyTorch: {text}"
                )
            if attempt == 2:
                break
            self.forget_step()
            self._meter.release()
            done = "put back from the copy on the host" if backup is not None else "nothing was changed yet"
            self._note("step", f"out of memory in the optimizer's {doing}; {done}: repeated")
            _one_by_one(self._optimizer)
        raise torch.OutOfMemoryError(
            f"vramlens guard: the optimizer's {doing} ran out of memory three times; parameters are as before this"
            f" step. Use an optimizer with less state, or a smaller batch\nPyTorch: {text}"
        )

    def forget_step(self) -> None:
        """Has a scaler allow another step with the same gradients."""
        states = getattr(self._scaler, "_per_optimizer_states", None)
        if states is not None:
            for state in states.values():
                stage = type(state.get("stage"))
                if hasattr(stage, "UNSCALED") and state.get("found_inf_per_device"):
                    state["stage"] = stage.UNSCALED

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
    """The scaler that a library's wrapper of an optimizer steps through (accelerate's, Lightning's); None: none."""
    plugin = getattr(getattr(optimizer, "_strategy", None), "precision_plugin", None)
    for holder in (optimizer, plugin):
        found = getattr(holder, "scaler", None)
        if hasattr(found, "unscale_") and getattr(found, "is_enabled", lambda: True)():
            return found
    return None


def _half_updated(text: str) -> RuntimeError:
    return step_failed(
        "vramlens guard: the optimizer's step ran out of memory after it had begun to change the model: parameters are"
        " neither old nor new. Go back to your last checkpoint; guard(..., step_backup=True) can undo this,"
        f" foreach=False needs less room\nPyTorch: {text}"
    )


def _one_by_one(optimizer: Any) -> None:
    """From now on one parameter after the other: no temporaries for all of them at once."""
    for group in optimizer.param_groups:
        if group.get("foreach", True) is not False and not group.get("fused") and "foreach" in group:
            group["foreach"] = False
