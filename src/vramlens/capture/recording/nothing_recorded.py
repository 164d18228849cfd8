"""Why a program that was to be recorded left no recording, and what to do."""

from __future__ import annotations

import os
import shlex

from vramlens.capture.torch_api import loaded_torch
from vramlens.capture.triggers.ending_line import needs_a_gpu, uncaught
from vramlens.capture.warn import say, say_sentences


def say_why_nothing(program: str | None, *, is_visible: bool, leaks: bool) -> None:
    """Says at a program's end why nothing was recorded.

    Args:
        program: its file or module.
        is_visible: whether PyTorch can use a GPU.
        leaks: whether leaks were looked for.
    """
    if needs_a_gpu(uncaught()):
        say_sentences(_without_gpu(program, leaks=leaks))
    else:
        say(_why_nothing(is_visible=is_visible, leaks=leaks))


def _why_nothing(*, is_visible: bool, leaks: bool) -> str:
    if loaded_torch() is None:
        return "the program did not import torch, so nothing was recorded"
    if leaks:
        return "no GPU was used: only CPU tensors were watched, nothing was recorded"
    if is_visible:
        return "the program did not use the GPU, so nothing was recorded"
    return (
        "PyTorch cannot use a GPU here, so nothing was recorded (run 'vramlens doctor' to see why;"
        " 'vramlens run --leaks' finds leaks on the CPU)"
    )


def _without_gpu(program: str | None, *, leaks: bool) -> str:
    """What to do with a program that failed because it has no GPU."""
    script = shlex.quote(program) if program and os.path.isfile(program) else "SCRIPT"  # no module
    if leaks:
        option = " --leaks"
        commands = (
            f"'vramlens predict -o run.vram {script}' and 'vramlens leaks run.vram' show what grows"
        )
    else:
        option = ""
        commands = f"'vramlens predict {script}' predicts its memory"
    return (
        f"the script needs a GPU, and PyTorch can use none here: {commands} without one; use"
        f" 'vramlens run{option}' on the machine with the GPU ('vramlens doctor' says why there is"
        " none here)"
    )
