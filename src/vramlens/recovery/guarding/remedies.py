"""Remedies: what to do differently after out of memory, in the order that the user gave."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramlens.recovery.guarding.admission import PeakGuess
from vramlens.recovery.guarding.guard_options import GuardOptions
from vramlens.recovery.losses.part_losses import loss_of
from vramlens.recovery.memory_errors import OUT_OF_MEMORY, STICKY, MemoryFailure, kind_of, let_go
from vramlens.recovery.meters import Meter
from vramlens.recovery.splitting.batch_parts import CannotSplit
from vramlens.recovery.splitting.refusal_words import IS_NORMALISED
from vramlens.recovery.splitting.split_check import SplitCheck
from vramlens.recovery.splitting.split_proofs import SplitProofs, TrainingContext
from vramlens.recovery.training.batch_attempts import Call
from vramlens.recovery.training.recompute import (
    Unit,
    checkpoint_module,
    is_compiled,
    offloaded,
    saved_bytes,
    uncheckpoint_module,
    units_of,
)
from vramlens.recovery.training.rollback import Buffers, RandomState
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_SPLIT_YOURSELF = (
    "use a smaller batch, or guard(..., split=lambda batch, start, stop: ...) to split it yourself"
)
_TAKE_HOOK_AWAY = "use a smaller batch, or remove the hook so that guard.step steps the optimizer"


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do differently.

    Attributes:
        micro_batch: samples in a part from now on; None: unchanged.
        failed_size: samples in the part that failed; None: not known.
    """

    micro_batch: int | None = None
    failed_size: int | None = None


class Remedies:
    """Chooses remedies and remembers which are in use, and why others are not."""

    def __init__(
        self, around: TrainingContext, options: GuardOptions, *, meter: Meter, proofs: SplitProofs
    ) -> None:
        self._model, self._parameters = around.model, around.parameters
        self._devices, self._note = around.devices, around.note
        self._options, self._meter, self._proofs = options, meter, proofs
        self._order = tuple(options.order)
        self._why_not: dict[str, str] = {}
        self._way_out = ""
        self._free_when_failed: int | None = None
        self._tried: int | None = None
        self._freed = False
        self._checkpointed: list[str] = []
        self._unfit: set[str] = set()  # blocks that must not be recomputed
        self._offloading = False
        self._guess = PeakGuess(meter, options.threshold)

    def note_failure(self, failure: MemoryFailure) -> None:
        """Looks at the counters while the failed attempt's tensors still live."""
        self._free_when_failed = self._meter.reserved_bytes() - self._meter.allocated_bytes()
        self._tried = failure.tried_bytes
        self._guess.forget()

    def note_success(self, calls: Sequence[Call]) -> None:
        """Learns from a step that went well."""
        self._freed = False
        self._guess.learn(calls)

    def next(self, calls: list[Call], model: Any) -> Remedy | None:
        """The next remedy, in force when this returns; None: there is none left."""
        for remedy in self._order:
            action = {
                "free_cached": lambda: self._free_cached(),
                "split": lambda: self._split(calls, model),
                "checkpoint": lambda: self._checkpoint(calls[-1], model),
                "offload": lambda: self._offload(),
            }[remedy]()
            if action is not None:
                return action
        return None

    def undo_recomputation(
        self, changed_buffers: Callable[[], list[str]], changed_values: Callable[[], set[int]]
    ) -> bool:
        """Whether a block that is recomputed has changed something of its own: it would do so
        twice, and is left alone.

        Running statistics of norms are kept by the recomputation itself.
        """
        if not self._checkpointed:
            return False
        buffers, holders = set(changed_buffers()), changed_values()
        modules = dict(self._inner().named_modules())
        prefix = "" if self._inner() is self._model else "module."
        undone = False
        for name in list(self._checkpointed):
            changed = _own_changes(modules[name], f"{prefix}{name}.", buffers, holders)
            if changed:
                uncheckpoint_module(modules[name])
                self._checkpointed.remove(name)
                self._unfit.add(name)
                self._refuse(
                    "checkpoint",
                    f"{name} changes {changed} in its forward pass and would change it twice",
                )
                undone = True
        return undone

    def exhausted(self) -> str:
        """Why no remedy is left, in one sentence."""
        return (
            "; ".join(f"{name}: {self._why_not.get(name, 'already tried')}" for name in self._order)
            or "none was allowed"
        )

    def last_remedy(self) -> str:
        """What the user can do now that no remedy is left: it depends on why the batch was not
        split.
        """
        if "split" not in self._order:
            return 'use a smaller batch, or allow the guard to split it: order=("free_cached", "split", ...)'
        return self._way_out or "use a smaller batch or a larger GPU"

    def around(self) -> Callable[[], contextlib.AbstractContextManager[None]] | None:
        """The context for forwards, if one is needed."""
        if not self._offloading:
            return None
        parameters = [parameter for _, parameter in self._parameters]
        return lambda: offloaded(parameters)

    def state(self) -> dict[str, Any]:
        """What is in force, as plain values."""
        return {"checkpointed": list(self._checkpointed), "offloading": self._offloading}

    def load_state(self, state: dict[str, Any]) -> None:
        """Puts in force what was."""
        modules = dict(self._model.named_modules())
        for name in state.get("checkpointed", ()):
            if name in modules and name not in self._checkpointed:
                checkpoint_module(modules[name])
                self._checkpointed.append(name)
        self._offloading = bool(state.get("offloading"))

    # Splitting.

    def _split(self, calls: list[Call], model: Any) -> Remedy | None:
        try:
            size = max(call.size or call.split(self._options.split).count for call in calls)
        except CannotSplit as error:
            self._refuse("split", str(error))
            self._way_out = _SPLIT_YOURSELF
            return None
        if size <= 1:
            self._why_not["split"] = "even a single sample does not fit"
            recompute = "" if self._checkpointed else "torch.utils.checkpoint in the model, "
            self._way_out = (
                "use a smaller sample (a shorter sequence, a lower resolution), "
                f"{recompute}bfloat16 autocast, or a larger GPU"
            )
            return None
        hooked = self._stepping_hooks()
        if hooked:
            self._refuse(
                "split",
                f"a hook uses the gradient of {hooked} as soon as it is ready, once for each part",
            )
            self._way_out = _TAKE_HOOK_AWAY
            return None
        half = -(-size // 2)
        call = calls[-1]
        call.size = half  # the check takes no more samples at once
        check = self._proofs.refusal(call, model)
        if check is not None:
            self._why_not["split"] = check.reason
            self._way_out = _way_around(check)
            return None
        return Remedy(half, size)

    def _stepping_hooks(self) -> str:
        for name, parameter in self._parameters:
            if getattr(parameter, "_post_accumulate_grad_hooks", None) and not hasattr(
                parameter, "device_mesh"
            ):
                return name
        return ""

    def admitted(self, call: Call, size: int | None, model: Any) -> int | None:
        """The samples of a part with which the predicted peak stays below the threshold; None:
        as it is.
        """
        if "split" not in self._order:
            return None
        try:
            if size is not None:
                # The share of a part in its batch is not known without.
                call.split(self._options.split)
            share = self._guess.share_that_fits(call, size)
            if share is None:
                return None
            samples = call.split(self._options.split)
        except CannotSplit:
            return None
        count = min(size or samples.count, samples.count)
        fitting = max(1, int(count * share))
        if fitting >= count or self._stepping_hooks():
            return None
        return None if self._proofs.refusal(call, model) else fitting

    # The others.

    def _free_cached(self) -> Remedy | None:
        free, tried = self._free_when_failed, self._tried
        self._free_when_failed = None
        if self._freed or not free or tried is None or free < tried:
            self._why_not["free_cached"] = (
                "too little was cached" if not self._freed else "did not help"
            )
            return None
        self._freed = True
        self._note(
            "free_cached",
            f"{format_size(free)} were cached when a request for {format_size(tried)} failed "
            "(fragmentation); emptied the cache and repeated",
            size=free,
        )
        return Remedy()

    def _checkpoint(self, call: Call, model: Any) -> Remedy | None:
        if is_compiled(self._model):
            self._why_not["checkpoint"] = (
                "a compiled model would be compiled again: call torch.compile after checkpointing"
            )
            return None
        left_alone = {*self._checkpointed, *self._unfit}
        units = [unit for unit in units_of(self._inner()) if unit.name not in left_alone]
        if not units:
            self._why_not["checkpoint"] = self._why_no_units()
            return None
        chosen = self._largest_half(self._measured(units, call, model))
        for unit in chosen:
            checkpoint_module(unit.module)
            self._checkpointed.append(unit.name)
        names = ", ".join(unit.name for unit in chosen[:3]) + (", ..." if len(chosen) > 3 else "")
        self._note(
            "checkpoint",
            f"recomputes {counted(len(chosen), 'module')} in the backward pass from now on: "
            f"{names}; same gradients, more time",
        )
        return Remedy()

    def _why_no_units(self) -> str:
        if self._checkpointed:
            return f"{counted(len(self._checkpointed), 'module')} already recomputed"
        return "no block of modules can be recomputed"

    def _largest_half(self, units: list[Unit]) -> list[Unit]:
        """The first of some units, up to half of what all keep; all of them the second time."""
        total = sum(unit.saved_bytes for unit in units)
        if not total or self._checkpointed:
            return units
        saved_before = itertools.accumulate((unit.saved_bytes for unit in units), initial=0)
        return [unit for unit, saved in zip(units, saved_before, strict=False) if saved * 2 < total]

    def _inner(self) -> torch.nn.Module:
        return (
            getattr(self._model, "module", self._model)
            if hasattr(self._model, "no_sync")
            else self._model
        )

    def _measured(self, units: list[Unit], call: Call, model: Any) -> list[Unit]:
        """The units with what they keep for the backward, measured with one sample; the largest
        first.
        """
        random, buffers = RandomState(self._devices), Buffers(self._model, all_of_them=True)
        buffers.save()
        try:
            small = call.split(self._options.split).part(0, 1)
            with saved_bytes(self._model, units) as counted_bytes:
                loss_of(call.loss_fn(model, small))
            units = [Unit(unit.name, unit.module, counted_bytes[unit.name]) for unit in units]
        except Exception as error:  # no room, or no batch of one: then by their names' order
            if kind_of(error) == STICKY:
                raise
            if kind_of(error) == OUT_OF_MEMORY:
                self._note("caught", "out of memory while blocks were measured with one sample")
            let_go(error)
        finally:
            buffers.restore()
            random.restore()
            self._meter.release()
        return sorted(units, key=lambda unit: -unit.saved_bytes)

    def _offload(self) -> Remedy | None:
        if self._offloading or all(device.type == "cpu" for device in self._devices):
            self._why_not["offload"] = (
                "activations are already kept on the host" if self._offloading else "no GPU"
            )
            return None
        self._offloading = True
        self._note(
            "offload",
            "activations of 1 MiB or more are kept in host memory from now on; same gradients, "
            "more time",
        )
        return Remedy()

    def _refuse(self, remedy: str, reason: str) -> None:
        self._why_not[remedy] = reason
        self._note("refusal", f"does not {remedy}: {reason}")


def _own_changes(module: Any, prefix: str, buffers: set[str], holders: set[int]) -> str:
    """What a block's forward has changed, by name; empty: nothing, or only a norm's running
    statistics.
    """
    for path, inner in module.named_modules():
        if isinstance(inner, torch.nn.modules.batchnorm._NormBase):
            continue
        for key in inner._buffers:
            name = f"{prefix}{path}{'.' if path else ''}{key}"
            if name in buffers:
                return f"the buffer {name}"
        if id(vars(inner)) in holders:
            return f"an attribute of {type(inner).__name__}"
    return ""


def _way_around(check: SplitCheck) -> str:
    """What to do about a refused split."""
    if IS_NORMALISED in check.reason:
        return (
            "use a smaller batch, GroupNorm, the norms in eval() if they should not learn, or "
            "guard(..., strict=False), which splits even though gradients change"
        )
    if check.error is not None:  # it was compared, and the gradient is another
        count = (
            "return (sum, count) from loss_fn if its mean is not over samples; "
            if "(sum, count)" in check.reason
            else ""
        )
        return (
            f"use a smaller batch; {count}or guard(..., strict=False), which splits even though "
            "gradients change"
        )
    if "nan" in check.reason or "inf" in check.reason or "not finite" in check.reason:
        return (
            "find out why the loss is not finite, or use a smaller batch, which fits without a "
            "split"
        )
    return (
        "use a smaller batch, or guard(..., verify=False) if you know that a split changes nothing"
    )
