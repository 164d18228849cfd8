"""Strategies put into a script from outside, while it runs as it is: by hooks on the modules and
optimizers that it makes itself.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vramlens.recovery.comparing.strategy_kinds import (
    NotHere,
    Strategy,
    TrainingSetup,
    contexts,
    parts_of,
)

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

FROM_OUTSIDE = (
    "default", "empty_cache", "expandable", "checkpoint", "checkpoint_half", "bf16", "offload",
    "foreach_off", "fused", "channels_last", "bf16+fused", "bf16+checkpoint",
)  # fmt: skip
"""The strategies that need no change of the training loop."""
_OPTIMIZER_OPTIONS: dict[str, dict[str, bool]] = {
    "foreach_off": {"foreach": False, "fused": False},
    "fused": {"foreach": False, "fused": True},
}
_LOSSES = ("_loss", "cross_entropy", "cross_entropy_with_logits")


class ScriptChanges:
    """The strategies of one name, in every model that a script trains.

    A model is a module that the script itself calls, with weights to train. What is done around its
    forward is done around losses, too, as in ``with torch.autocast(...): loss = ...``.
    """

    def __init__(self, name: str) -> None:
        self._parts = parts_of(name)
        self._trainings: dict[int, TrainingSetup] = {}
        self._depth = 0
        self._entered: list[contextlib.ExitStack] = []
        self._uses: set[str] = set()
        self._reasons: dict[str, str] = {}

    def put(self) -> None:
        """Puts the hooks in place; for good."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        module = torch.nn.modules.module
        module.register_module_forward_pre_hook(self._begin)
        module.register_module_forward_hook(self._end, always_call=True)
        functional: Any = torch.nn.functional
        for name in dir(functional):
            if name.endswith(_LOSSES) and not name.startswith("_"):
                setattr(functional, name, self._around(getattr(functional, name)))
        self._put_optimizer_options()
        register_optimizer_step_post_hook(self._after_step)

    @property
    def why_not(self) -> str:
        """Why a strategy did nothing in this script; empty where all did something."""
        for part in self._parts:
            if part.name not in self._uses and part.name != "default":
                reason = "the script trains no module of PyTorch's that it calls"
                return self._reasons.get(part.name, reason)
        return ""

    def _begin(self, module: Any, inputs: Any) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        is_trained = module.training and torch.is_grad_enabled()
        if is_trained and id(module) not in self._trainings:
            self._prepare(module)
        training = self._trainings.get(id(module))
        around = self._contexts_of_losses() if training is None else training.around_forward
        self._entered.append(contexts(around if is_trained else []))

    def _end(self, module: Any, inputs: Any, outputs: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._entered.pop().close()

    def _prepare(self, module: Any) -> None:
        """Puts the strategies into a model that is called for the first time."""
        if not any(weight.requires_grad for weight in module.parameters()):
            return
        training = TrainingSetup(module, lambda parameters: None, torch.device("cuda"))
        for part in self._parts:
            if part.name not in _OPTIMIZER_OPTIONS:
                self._prepare_part(part, training)
        self._trainings[id(module)] = training

    def _prepare_part(self, part: Strategy, training: TrainingSetup) -> None:
        try:
            part.prepare(training)
            self._uses.add(part.name)
        except NotHere as error:
            self._reasons[part.name] = str(error)

    def _contexts_of_losses(self) -> list[Callable[[], Any]]:
        trainings = list(self._trainings.values())
        return trainings[-1].around_forward if trainings else []

    def _around(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(loss)
        def computed(*args: Any, **options: Any) -> Any:
            is_outside = self._depth == 0 and torch.is_grad_enabled()
            with contexts(self._contexts_of_losses() if is_outside else []):
                return loss(*args, **options)

        return computed

    def _put_optimizer_options(self) -> None:
        chosen = {
            part.name: _OPTIMIZER_OPTIONS[part.name]
            for part in self._parts
            if part.name in _OPTIMIZER_OPTIONS
        }
        optimizer_class: Any = torch.optim.Optimizer
        plain = optimizer_class.__init__

        @functools.wraps(plain)
        def begin(optimizer: Any, params: Any, defaults: dict[str, Any]) -> None:
            for name, options in chosen.items():
                if defaults.items() >= options.items():
                    self._reasons[name] = "the optimizer already has it"
                elif all(option in defaults for option in options):
                    defaults = {**defaults, **options}
                    self._uses.add(name)
                else:
                    self._reasons[name] = f"{type(optimizer).__name__} has no {name}"
            plain(optimizer, params, defaults)

        optimizer_class.__init__ = begin

    def _after_step(self, optimizer: Any, args: Any, options: Any) -> None:
        for training in self._trainings.values():
            if training.after is not None:
                training.after()
                return
