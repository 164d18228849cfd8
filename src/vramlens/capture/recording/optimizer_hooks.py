"""Changes to PyTorch's hooks of all optimizers, made where they break no step of the program.

An optimizer calls these hooks in a loop over an ``OrderedDict``. If another thread adds or removes
one meanwhile, the loop ends with "RuntimeError: OrderedDict mutated during iteration", in the
program's own step. The loop notices only where a hook is still to come.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from vramlens.capture.process.own_thread import wait
from vramlens.capture.process.undisturbed import no_other_thread

_TRIES_FOR_S = 2.0
_LOOKS_EVERY_S = 0.001


def between_steps(optimizer_module: Any, change: Callable[[], None]) -> bool:
    """Whether the change could be made: at once where the program has no such hooks of its own,
    else when no thread is inside of an optimizer's step.

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
