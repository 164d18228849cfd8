"""A program's ending in one line: the exception that nobody caught, or where the signal that
ended it found it.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable
from types import FrameType

import vramlens
from vramlens.ground.place import path_in_packages

_LONGEST_MESSAGE = 300
_NO_GPU = (
    "Torch not compiled with CUDA enabled",
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
    "torch.cuda.is_available() is False",
)
"""What PyTorch says without a GPU: ``torch/cuda/__init__.py``, ``c10/cuda/CUDAFunctions.cpp``, and
``torch/serialization.py`` of a file that was written with one.
"""


def uncaught() -> BaseException | None:
    """The exception that ends the program; None where it ends otherwise."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def needs_a_gpu(error: BaseException | None) -> bool:
    """Whether a program failed because PyTorch can use no GPU, as its exception says."""
    return error is not None and any(words in str(error) for words in _NO_GPU)


def ending_of_exception(error: BaseException) -> str:
    """An exception as ``ValueError: its text, at train.py:31 in step``; the place is the
    innermost of the user's.
    """
    text = " ".join(str(error).split())[:_LONGEST_MESSAGE]
    stack = reversed(list(traceback.walk_tb(error.__traceback__)))
    return f"{type(error).__name__}{': ' if text else ''}{text}{_at(stack)}"


def ending_of_signal(name: str, where: FrameType | None) -> str:
    """Where a signal found the main thread, as ``SIGTERM, at train.py:31 in step``."""
    return name + _at(traceback.walk_stack(where) if where is not None else ())


def _at(stack: Iterable[tuple[FrameType, int]]) -> str:
    """Of frames, innermost first, the first one of the user's."""
    users = first_of_users(stack)
    if users is None:
        return ""
    code, line = users[0].f_code, users[1]
    return f", at {code.co_filename}:{line} in {code.co_name}"


def first_of_users(stack: Iterable[tuple[FrameType, int]]) -> tuple[FrameType, int] | None:
    """Of frames and their lines the first one of the user's; None where none is."""
    return next((entry for entry in stack if is_users(entry[0].f_code.co_filename)), None)


def is_users(file: str) -> bool:
    """True for a file of the program's own: not of Python's library, of packages, or of vramlens."""
    if file.startswith("<") or path_in_packages(file):
        return False
    return not file.startswith(
        (str(vramlens.__path__[0]) + os.sep, os.path.dirname(os.__file__) + os.sep)
    )
