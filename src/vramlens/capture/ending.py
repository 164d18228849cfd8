"""How a program ends, in one line: the exception that nobody caught, or where SIGTERM found it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable

import vramlens

_LONGEST_MESSAGE = 300
# Of faulthandler's dump: Python/traceback.c, dump_frame.
_FRAME = re.compile(r'^  File "([^"\n]+)", line (\d+) in ([^\n]+)$', re.MULTILINE)
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")


def uncaught() -> BaseException | None:
    """The exception that ends the program; None where it ends otherwise."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def ending_of_exception(error: BaseException) -> str:
    """An exception as ``ValueError: its text, at train.py:31 in step``; the place is the innermost of the user's."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    text = " ".join(str(error).split())[:_LONGEST_MESSAGE]
    return f"{type(error).__name__}{': ' if text else ''}{text}{_at(reversed(frames))}"


def ending_of_stack(dump: str) -> str:
    """What ``faulthandler`` wrote when SIGTERM came, as ``SIGTERM, at train.py:31 in step``."""
    return "SIGTERM" + _at((file, int(line), name) for file, line, name in _FRAME.findall(dump))


def _at(frames: Iterable[tuple[str, int, str]]) -> str:
    """Of frames, innermost first, the first one of the user's."""
    for file, line, name in frames:
        if _is_users(file):
            return f", at {file}:{line} in {name}"
    return ""


def _is_users(file: str) -> bool:
    if file.startswith("<") or _INSTALLED.search(file):
        return False
    return not file.startswith((str(vramlens.__path__[0]) + os.sep, os.path.dirname(os.__file__) + os.sep))
