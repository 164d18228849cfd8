"""The strategies that are compared: what each does to a training step, how hard it is, and what
it is best for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vramlens.errors import UsageError
from vramlens.ground.conf_text import installed_variable
from vramlens.recovery.losses.chunked_loss import in_chunks
from vramlens.recovery.losses.part_losses import BY_SAMPLES, Weights
from vramlens.recovery.training.recompute import checkpoint_module, offloaded, units_of

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch


@dataclass(frozen=True, slots=True)
class Program:
    """What the user gave to be compared: how a model is made and trained.

    Attributes:
        batch: samples in a batch.
    """

    model_fn: Callable[[], Any]
    make_batch: Callable[[int], Any]
    loss_fn: Callable[[Any, Any], Any]
    optimizer_fn: Callable[[Any], Any]
    batch: int


@dataclass(slots=True)
class TrainingSetup:
    """What a strategy changes, before the first step.

    Attributes:
        model: what is trained; ``call``: what the loss function is given instead (a compiled
            model), if anything.
        optimizer_fn: parameters -> an optimizer.
        around_forward: contexts for each forward.
        parts: how many parts a batch is split into; ``weights``: by what they count.
        scaler: a gradient scaler.
        after: called after each step.
        idle: after a forward: why the strategy did nothing; empty where it did.
    """

    model: Any
    optimizer_fn: Callable[[Any], Any]
    device: Any
    call: Any = None
    around_forward: list[Callable[[], Any]] = field(default_factory=list)
    parts: int = 1
    weights: Weights = BY_SAMPLES
    scaler: Any = None
    after: Callable[[], Any] | None = None
    idle: Callable[[], str] = str
    optimizer: Any = None
    steps_in_backward: bool = False


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to train.

    Attributes:
        name: a slug; several joined by + are done together.
        edit: what to write in the program.
        difficulty: 1 (a line or a variable) to 3 (changes the training loop).
        best_for: in words.
        set_up: puts it into a training; None where changing the model is all there is to do.
        applies: puts it into a model; None where that alone does not do it.
        same_numbers: whether gradients are the same up to rounding.
    """

    name: str
    edit: str
    difficulty: int
    best_for: str
    set_up: Callable[[TrainingSetup], None] | None = None
    applies: Callable[[Any], Any] | None = None
    same_numbers: bool = True

    def prepare(self, training: TrainingSetup) -> None:
        """Puts it into a training."""
        if self.set_up is not None:
            self.set_up(training)
        elif self.applies is not None:
            training.model = self.applies(training.model)


class NotHere(UsageError):
    """A strategy that this model or machine cannot use; the text says why."""


def _empty_cache(training: TrainingSetup) -> None:
    if training.device.type == "cuda":
        training.after = torch.cuda.empty_cache


def _expandable(training: TrainingSetup) -> None:
    if training.device.type != "cuda":
        raise NotHere("an allocator setting of GPUs")
    settle: Any = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # in newer versions
    (settle or torch.cuda.memory._set_allocator_settings)("expandable_segments:True")


def _split(training: TrainingSetup) -> None:
    training.parts = 4


def _checkpoint(model: Any, every: int) -> Any:
    units = units_of(model)
    if not units:
        raise NotHere("no repeated blocks to recompute")
    for unit in units[::every]:
        checkpoint_module(unit.module)
    return model


def _channels_last(model: Any) -> Any:
    if not any(isinstance(module, torch.nn.Conv2d) for module in model.modules()):
        raise NotHere("no 2-d convolution")
    return model.to(memory_format=torch.channels_last)


def _autocast(dtype: str) -> Callable[[TrainingSetup], None]:
    def prepare(training: TrainingSetup) -> None:
        kind = training.device.type
        if _is_autocast(kind, getattr(torch, dtype)):
            raise NotHere(f"autocast in {dtype} is already in use")
        training.around_forward.append(lambda: torch.autocast(kind, getattr(torch, dtype)))
        if dtype == "float16":
            training.scaler = torch.amp.GradScaler(kind)

    return prepare


def _is_autocast(kind: str, dtype: Any) -> bool:
    """Whether the present code runs in autocast to this type."""
    dtype_of = getattr(torch, "get_autocast_dtype", None)  # in newer versions
    if dtype_of is None:
        return False
    return bool(torch.is_autocast_enabled(kind)) and dtype_of(kind) is dtype


def _offload(training: TrainingSetup) -> None:
    if training.device.type != "cuda":
        raise NotHere("no GPU to offload from")
    parameters = list(training.model.parameters())
    training.around_forward.append(lambda: offloaded(parameters))


def _in_backward(training: TrainingSetup) -> None:
    parameters = [parameter for parameter in training.model.parameters() if parameter.requires_grad]
    optimizers = {parameter: training.optimizer_fn([parameter]) for parameter in parameters}

    def step(parameter: Any) -> None:
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(step)
    training.steps_in_backward = True


def _option(**options: Any) -> Callable[[TrainingSetup], None]:
    def prepare(training: TrainingSetup) -> None:
        plain = training.optimizer_fn

        def made(parameters: Any) -> Any:
            optimizer = plain(parameters)
            for name in options:
                if name not in optimizer.defaults:
                    raise NotHere(f"{type(optimizer).__name__} has no {name}")
            settings = {**optimizer.param_groups[0], "foreach": None, "fused": None, **options}
            settings.pop("params")
            accepted = type(optimizer).__init__.__code__.co_varnames
            return type(optimizer)(
                parameters, **{key: setting for key, setting in settings.items() if key in accepted}
            )

        training.optimizer_fn = made

    return prepare


def _eight_bit(training: TrainingSetup) -> None:
    if find_spec("bitsandbytes") is None:
        raise NotHere("bitsandbytes is not installed")
    import importlib

    adam = importlib.import_module("bitsandbytes.optim").AdamW8bit
    plain = training.optimizer_fn

    def made(parameters: Any) -> Any:
        optimizer = plain(parameters)
        return adam(parameters, lr=optimizer.param_groups[0]["lr"])

    training.optimizer_fn = made


def _chunked(training: TrainingSetup) -> None:
    chunked_calls: list[str] = []
    training.around_forward.append(lambda: in_chunks(chunked_calls))
    training.idle = lambda: (
        ""
        if chunked_calls
        else "no cross entropy over rows of logits that could be computed in chunks"
    )


def _compiled(training: TrainingSetup) -> None:
    training.call = torch.compile(training.model)


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy(
            name="default",
            edit="nothing",
            difficulty=1,
            best_for="comparison",
        ),
        Strategy(
            name="empty_cache",
            edit="torch.cuda.empty_cache() after each step",
            difficulty=1,
            best_for="other processes on the GPU",
            set_up=_empty_cache,
        ),
        Strategy(
            name="expandable",
            edit=f"{installed_variable()}=expandable_segments:True",
            difficulty=1,
            best_for="fragmentation",
            set_up=_expandable,
        ),
        Strategy(
            name="split",
            edit="vramlens.guard(model, optimizer, micro_batch=n // 4)",
            difficulty=1,
            best_for="batches too large",
            set_up=_split,
        ),
        Strategy(
            name="checkpoint",
            edit="torch.utils.checkpoint on each block",
            difficulty=2,
            best_for="deep models",
            applies=partial(_checkpoint, every=1),
        ),
        Strategy(
            name="checkpoint_half",
            edit="torch.utils.checkpoint on every second block",
            difficulty=2,
            best_for="slightly too little memory",
            applies=partial(_checkpoint, every=2),
        ),
        Strategy(
            name="bf16",
            edit="torch.autocast('cuda', torch.bfloat16)",
            difficulty=1,
            best_for="nearly everything on recent GPUs",
            set_up=_autocast("bfloat16"),
            same_numbers=False,
        ),
        Strategy(
            name="fp16",
            edit="torch.autocast('cuda', torch.float16) and a GradScaler",
            difficulty=2,
            best_for="GPUs without bfloat16",
            set_up=_autocast("float16"),
            same_numbers=False,
        ),
        Strategy(
            name="offload",
            edit="torch.autograd.graph.save_on_cpu(pin_memory=True)",
            difficulty=2,
            best_for="when nothing else fits",
            set_up=_offload,
        ),
        Strategy(
            name="in_backward",
            edit="step in register_post_accumulate_grad_hook",
            difficulty=3,
            best_for="models much larger than activations",
            set_up=_in_backward,
        ),
        Strategy(
            name="foreach_off",
            edit="optimizer(..., foreach=False)",
            difficulty=1,
            best_for="a peak in the optimizer's step",
            set_up=_option(foreach=False),
        ),
        Strategy(
            name="fused",
            edit="optimizer(..., fused=True)",
            difficulty=1,
            best_for="a peak in the optimizer's step",
            set_up=_option(fused=True),
        ),
        Strategy(
            name="eight_bit",
            edit="bitsandbytes.optim.AdamW8bit",
            difficulty=2,
            best_for="large optimizer state",
            set_up=_eight_bit,
            same_numbers=False,
        ),
        Strategy(
            name="chunked_loss",
            edit="cross entropy in chunks",
            difficulty=2,
            best_for="large vocabularies",
            set_up=_chunked,
        ),
        Strategy(
            name="channels_last",
            edit="model.to(memory_format=torch.channels_last)",
            difficulty=1,
            best_for="convolutions, in speed",
            applies=_channels_last,
        ),
        Strategy(
            name="compile",
            edit="torch.compile(model)",
            difficulty=1,
            best_for="speed, and activations of pointwise operators",
            set_up=_compiled,
            applies=lambda model: torch.compile(model),
        ),
    )
}
COMBINATIONS = (
    "bf16+fused",
    "bf16+checkpoint",
    "bf16+split",
    "bf16+fused+chunked_loss",
    "checkpoint+split",
    "bf16+compile",
)


def parts_of(name: str) -> list[Strategy]:
    """The strategies that a name joins.

    Raises:
        UsageError: there is no such strategy.
    """
    unknown = [part for part in name.split("+") if part not in STRATEGIES]
    if unknown:
        raise UsageError(
            f"strategies: {unknown[0]!r} is not a strategy; choose from "
            f"{', '.join(STRATEGIES)}, and combine them with +"
        )
    return [STRATEGIES[part] for part in name.split("+")]


def contexts(makers: list[Callable[[], Any]]) -> contextlib.ExitStack:
    """All of some contexts, entered."""
    stack = contextlib.ExitStack()
    for make in makers:
        stack.enter_context(make())
    return stack
