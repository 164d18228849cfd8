"""A drill: an out-of-memory error where a real one would strike, without a GPU, to test recovery
with.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramlens.argument_types import number_given, optional, takes, text
from vramlens.capture.process_group import initialized_group
from vramlens.capture.warn import say
from vramlens.errors import UsageError
from vramlens.ground.launcher import number_in
from vramlens.units import counted

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

PHASES = ("forward", "backward", "step")
_MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU {device} has a total capacity of 79.11"
    " GiB of which 1.14 GiB is free. Including non-PyTorch memory, this process has 77.96 GiB"
    " memory in use. Of the allocated memory 75.80 GiB is allocated by PyTorch, and 1.62 GiB is"
    " reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting"
    " PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for"
    " Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    " [injected by vramlens: {phase} {number}]"
)
"""As ``c10/cuda/CUDACachingAllocator.cpp`` words it, with its source named at the end."""


@dataclass(slots=True)
class Drill:
    """What a drill has done so far.

    Attributes:
        phase: forward, backward or step.
        seen: how many of them began.
        raised: how many errors were raised.
    """

    phase: str
    seen: int = 0
    raised: int = 0


@takes(phase=text, rank=optional(number_given), every=optional(number_given))
@contextlib.contextmanager
def inject_oom(
    phase: str = "backward",
    at: int | tuple[int, ...] | range = 1,
    rank: int | None = None,
    *,
    every: int | None = None,
) -> Iterator[Drill]:
    """Raises ``torch.OutOfMemoryError`` inside of a forward, a backward or an optimizer step; gives
    what it has done.

    A forward is one call of the outermost module: the error comes from the middle of it, after its
    second inner module (or at its end, if it has fewer), with the activations so far alive. A
    backward fails where the gradient of the first inner module's output arrives: the parameters
    behind it have their gradients, those before it have none; the error crosses the autograd engine
    as a real one does. A step fails after its first change in place, or while it
    makes its first state: what a plain retry would count or apply twice. Recomputation by
    activation checkpointing is not counted.

    Args:
        phase: "forward", "backward" or "step".
        at: the number (from 1) of the one that fails, counted from when the block begins; or
            several numbers.
        rank: only in the process of this rank (of ``torch.distributed``, else the variable
            ``RANK``); None: in all.
        every: fail every n-th one instead: 7 fails the 7th, the 14th, ...

    Raises:
        UsageError: there is no such phase, or a number below 1.
    """
    if phase not in PHASES:
        raise UsageError(f"inject_oom: {phase!r} is not a phase: use forward, backward or step")
    numbers = (at,) if isinstance(at, int) else tuple(at)
    if min((*numbers, 1 if every is None else every)) < 1:
        raise UsageError("inject_oom: at and every must be 1 or more")
    drill = Drill(phase)
    if rank is not None and rank != _rank():
        yield drill
        return

    def due() -> int | None:
        """The number of the one that begins, if it is to fail."""
        drill.seen += 1
        hit = drill.seen % every == 0 if every is not None else drill.seen in numbers
        return drill.seen if hit else None

    def fail(number: int) -> None:
        drill.raised += 1
        raise out_of_memory_error(phase, number)

    with _Steps(due, fail) if phase == "step" else _Calls(due, fail, phase == "backward"):
        yield drill
    if not drill.raised:  # reached only where the block ended well
        _say_nothing_failed(drill)


def _say_nothing_failed(drill: Drill) -> None:
    compiled = ": modules compiled with .compile() cannot be observed"
    is_observed = drill.seen or drill.phase == "step"
    say(
        f"inject_oom: nothing failed: {counted(drill.seen, drill.phase)} began, and none was to"
        f" fail{'' if is_observed else compiled}"
    )


def out_of_memory_error(phase: str, number: int) -> RuntimeError:
    """The exception that PyTorch raises, with its text."""
    kind: type[RuntimeError] = (
        getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
    )
    return kind(
        _MESSAGE.format(device=os.environ.get("LOCAL_RANK", "0"), phase=phase, number=number)
    )


def _rank() -> int:
    group = initialized_group()
    if group is not None:
        return int(group.get_rank())
    return number_in(os.environ, "RANK") or 0


class _Calls:
    """Watches the calls of modules in this thread, by hooks on all modules."""

    def __init__(self, due: Any, fail: Any, in_backward: bool) -> None:
        self._due, self._fail, self._in_backward = due, fail, in_backward
        self._thread = threading.get_ident()
        self._depth = self._leaves = 0
        self._number: int | None = None  # of the forward that is to fail
        self._marked = False
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        hooks = torch.nn.modules.module
        self._handles = [
            hooks.register_module_forward_pre_hook(self._begins),
            hooks.register_module_forward_hook(self._ends, always_call=True),
        ]

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _watched(self) -> bool:
        if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
            return False
        return bool(
            torch._C._current_graph_task_id() == -1
        )  # inside of a backward, checkpoints call modules again

    def _begins(self, _module: Any, _inputs: Any) -> None:
        if not self._watched():
            return
        if self._depth == 0:
            self._leaves, self._marked = 0, False
            self._number = None if self._in_backward else self._due()
        self._depth += 1

    def _ends(self, module: Any, _inputs: Any, output: Any) -> None:
        if not self._watched() or self._depth == 0:
            return
        self._depth -= 1
        if output is None:  # also what a call gives that was left by an exception
            return
        self._leaves += not any(True for _ in module.children())
        if self._in_backward:
            self._mark(output)
        elif self._number is not None and (self._depth == 0 or self._leaves == 2):
            number, self._number = self._number, None
            self._fail(number)

    def _mark(self, output: Any) -> None:
        """Has the backward stop where it reaches this output, the first of its forward that
        takes a gradient.
        """
        tensors = [leaf for leaf in _tensors(output) if leaf.requires_grad]
        if self._marked or not tensors:
            return
        self._marked = True
        waiting = [True]  # several tensors may come back, and not all need to

        def arrives(_gradient: torch.Tensor) -> None:
            number = self._due() if self._handles and waiting and waiting.pop() else None
            if number is not None:
                self._fail(number)

        for tensor in tensors:
            tensor.register_hook(arrives)  # type: ignore[no-untyped-call]


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for inner in output.values():
            yield from _tensors(inner)
    elif isinstance(output, (list, tuple)):
        for inner in output:
            yield from _tensors(inner)


class _Steps:
    """Watches optimizer steps, and what they call while one of them is to fail."""

    def __init__(self, due: Any, fail: Any) -> None:
        self._due, self._fail = due, fail
        self._number: int | None = None
        self._states = 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> None:
        from torch.optim import optimizer
        from torch.overrides import TorchFunctionMode

        outer = self

        class DrillWatch(TorchFunctionMode):
            def __torch_function__(
                self, function: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                if outer._number is None:
                    return function(*args, **(kwargs or {}))
                return outer._called(function, args, kwargs or {})

        def begins(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
            self._number, self._states = self._due(), 0

        def ends(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if (
                self._number is not None
            ):  # nothing in it that could be watched, as in a compiled step
                number, self._number = self._number, None
                self._fail(number)

        self._stack.callback(optimizer.register_optimizer_step_pre_hook(begins).remove)
        self._stack.callback(optimizer.register_optimizer_step_post_hook(ends).remove)
        self._stack.enter_context(DrillWatch())

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _called(self, function: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(function, "__name__", "")
        self._states += name == "zeros_like"
        changes = name.endswith("_") and not name.endswith("__")
        if self._states == 2 or (changes and "fused" in name):
            self._raise()
        output = function(*args, **kwargs)
        if changes:
            self._raise()
        return output

    def _raise(self) -> None:
        number, self._number = self._number, None
        assert number is not None
        self._fail(number)
