"""Errors that are the program's although they are raised in the midst of our code.

A handler of a signal runs between any two instructions of the main thread, and may raise: that is
how a program ends what takes too long (``signal.alarm``). Where we forgive ourselves an error, such
a one goes on to the program.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

_OURS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_TAKES_ALL_ARGUMENTS = 0x04  # a code's flag


class own_errors:  # noqa: N801 - read like contextlib.suppress, in whose place it stands
    """Suppresses every ``Exception`` but the program's own."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return isinstance(error, Exception) and not is_of_program(error)


def answer_of(ask: Any, otherwise: Any = None) -> Any:
    """The return value of a question to a library; ``otherwise`` where it is missing or fails."""
    try:
        return ask()
    except Exception as error:
        let_through(error)
        return otherwise


def let_through(error: Exception) -> None:
    """Raises an error again if it is the program's own."""
    if is_of_program(error):
        raise error


def is_of_program(error: BaseException) -> bool:
    """Whether a handler of a signal, or a function that traces the program, raised an error."""
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        if _has_been_given(entry.tb_next, entry):
            return True
        entry = entry.tb_next
    return False


def _has_been_given(entry: TracebackType, caller: TracebackType) -> bool:
    """Whether the function of an entry was given the frame that it interrupted."""
    code = entry.tb_frame.f_code
    if code.co_filename.startswith(_OURS):
        return False
    values = entry.tb_frame.f_locals
    has_rest = bool(code.co_flags & _TAKES_ALL_ARGUMENTS)
    count = code.co_argcount + code.co_kwonlyargcount
    arguments = [values.get(name) for name in code.co_varnames[:count]]
    # An audit hook hears of the frame that we ask for in a tuple: that is not what it interrupts.
    extra_arguments = values.get(code.co_varnames[count]) if has_rest else ()
    return any(part is caller.tb_frame for part in (*arguments, *(extra_arguments or ())))
