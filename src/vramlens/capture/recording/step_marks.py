"""Steps of the program: what ``vramlens.step()`` says, else each turn of the optimizers."""

from __future__ import annotations

import importlib
import sys
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from vramlens.capture.process.own_thread import wait
from vramlens.capture.process.undisturbed import no_other_thread
from vramlens.capture.torch_api import loaded_torch
from vramlens.capture.triggers.ending_line import needs_a_gpu, uncaught
from vramlens.capture.warn import harmless, say_sentences

_NO_STEP = (
    "no step has ended (by an optimizer, a call of the model, a turn of a loop, a tenth of a"
    " second, or vramlens.step()), so there is nothing to compare"
)
manual_step_listeners: list[Callable[[], None]] = []
"""What is called whenever ``vramlens.step()`` is, recorded or not."""
_TRIES_FOR_S = 2.0
_LOOKS_EVERY_S = 0.001


def say_no_step() -> None:
    """Says why ``--leaks`` has nothing to tell; a program that needs a GPU is told that instead."""
    if not needs_a_gpu(uncaught()):
        say_sentences(f"--leaks: {_NO_STEP}")


class StepCounter:
    """Counts steps and tells others.

    Attributes:
        count: steps that have ended.
        source: "vramlens.step", "optimizer" or None so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self.source: str | None = None
        self._listeners: list[Callable[[int], None]] = []
        self._handle: Any = None
        self._optimizer_module: Any = None
        self._uncompiled_turn: Callable[[Any], None] | None = None
        self._turns: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._newcomer: weakref.ref[Any] | None = None
        self._come_one_by_one = False  # each trains alone, though the others are held (folds)

    def on_step(self, listener: Callable[[int], None]) -> None:
        """Has ``listener`` called with the number of ended steps after each, on the thread that
        ended it.
        """
        self._listeners.append(listener)

    def watch_optimizers(self) -> None:
        """Begins to count optimizer steps."""
        # Torch.optim hides it among its attributes.
        self._optimizer_module = importlib.import_module("torch.optim.optimizer")
        between_steps(self._optimizer_module, self._add_hook)

    def _add_hook(self) -> None:
        add = self._optimizer_module.register_optimizer_step_post_hook
        self._handle = add(self._optimizer_stepped)

    def leave_optimizers(self) -> None:
        """Counts optimizer steps no longer: the hook is gone. Where the program is never between
        its steps, the hook stays and does nothing.
        """
        if self._handle is not None:
            self._listeners.clear()
            if between_steps(self._optimizer_module, self._handle.remove):
                self._handle = None

    @harmless("counting steps")
    def mark(self) -> None:
        """Ends a step by hand: from now on optimizers no longer count."""
        if self.source != "vramlens.step":
            self.source, self.count = "vramlens.step", 0
        torch = loaded_torch()
        if torch is not None:
            with torch.autograd.profiler.record_function(f"vramlens.step#{self.count}"):
                pass  # leaves its mark among the recording's annotations
        self._ended(self.count + 1)

    @harmless("counting steps")
    def _optimizer_stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """PyTorch's hook after each step of an optimizer, which may be compiled."""
        if self.source == "vramlens.step":
            return
        if self._uncompiled_turn is None:
            disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
            self._uncompiled_turn = disable(self._turn_ended) if disable is not None else None
        (self._uncompiled_turn or self._turn_ended)(optimizer)

    # ``torch.compile`` neither looks into the hook, of which it would warn, nor compiles what the
    # hook calls: the mark says the first, ``disable`` the second.
    _optimizer_stepped._torchdynamo_disable = True  # type: ignore[attr-defined]

    def _turn_ended(self, optimizer: Any) -> None:
        # Several optimizers, as a GAN has, take turns within one step.
        if optimizer not in self._turns:
            self._newcomer = weakref.ref(optimizer) if self._turns else None
            self._turns[optimizer] = self._turns_before(optimizer)
        else:
            steps_on = self._newcomer is not None and self._newcomer() is optimizer
            self._come_one_by_one |= steps_on
            self._newcomer = None
        turns = self._turns[optimizer] = self._turns[optimizer] + 1
        if turns > self.count:
            self.source = "optimizer"
            self._ended(turns)

    def _turns_before(self, optimizer: Any) -> int:
        """The turns of an optimizer that comes later: as many as if it had been there; one that
        takes the place of another begins a step. Those that take turns, or wrap one another, are
        there from the first step on; where one that came later stepped twice in a row, those
        after it take its place.
        """
        stepped_optimizers = [other for other, turns in self._turns.items() if turns == self.count]
        parameters = _parameters_of(optimizer)
        has_theirs = self.count > 1 and any(
            parameters & _parameters_of(other) for other in stepped_optimizers
        )
        takes_a_place = not stepped_optimizers or has_theirs or self._come_one_by_one
        return self.count if takes_a_place else max(0, self.count - 1)

    def _ended(self, count: int) -> None:
        self.count = count
        for listener in self._listeners:
            listener(count)


def _parameters_of(optimizer: Any) -> set[int]:
    """What an optimizer steps, by identity."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def between_steps(optimizer_module: Any, change: Callable[[], None]) -> bool:
    """Whether the change could be made: at once where the program has no such hooks of its own,
    else when no thread is inside of an optimizer's step.

    An optimizer calls these hooks in a loop over an ``OrderedDict``. If another thread adds or
    removes one meanwhile, the loop ends with "RuntimeError: OrderedDict mutated during iteration",
    in the program's own step. The loop notices only where a hook is still to come.

    Args:
        optimizer_module: ``torch.optim.optimizer``.
        change: adds or removes one hook.
    """
    hooks = getattr(optimizer_module, "_global_optimizer_post_hooks", ())
    deadline = time.monotonic() + _TRIES_FOR_S
    while True:
        with no_other_thread():
            if len(hooks) <= 1 or not _is_stepping(optimizer_module.__file__):
                change()
                return True
        if time.monotonic() > deadline:
            return False
        wait(_LOOKS_EVERY_S)


def _is_stepping(file: str) -> bool:
    """Whether a thread runs a function of this file, or one that it has called."""
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_code.co_filename == file:
                return True
            frame = frame.f_back
    return False
