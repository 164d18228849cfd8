"""Capture's words to the person: a line or two on standard error, and nothing that could stop the
program.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from vramlens.foreign_text import one_line
from vramlens.ground.own_line import own_line
from vramlens.ground.program_errors import let_through, own_errors
from vramlens.ground.wrapped_lines import answer_width, wrapped_lines

_said: set[str] = set()
_listeners: list[Callable[[str], object]] = []
Function = TypeVar("Function", bound=Callable[..., Any])


def say(line: str) -> None:
    """Prints one line on standard error; who listens gets it instead."""
    if _listeners:
        _listeners[-1](one_line(line))
        return
    # Closed, a full disk behind it, replaced: never the program's trouble.
    with own_errors():
        sys.stderr.write(f"{own_line(one_line(line), sys.stderr)}\n")
        sys.stderr.flush()


def say_sentences(text: str) -> None:
    """Prints sentences on standard error, in lines of a plain answer; who listens gets one line."""
    if _listeners:
        say(text)
        return
    with own_errors():
        lines = wrapped_lines(f"vramlens: {one_line(text)}", answer_width(sys.stderr))
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()


@contextlib.contextmanager
def heard_by(listener: Callable[[str], object]) -> Iterator[None]:
    """Inside, lines go to a listener and not to the program's standard error."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def say_once(line: str, about: str | None = None) -> None:
    """Prints a line unless one about the same has been printed before (by default: the same
    line).
    """
    if (about or line) not in _said:
        _said.add(about or line)
        say(line)


def harmless(doing: str) -> Callable[[Function], Function]:
    """A decorator: an error inside becomes one warning that begins with ``doing``, and the
    answer None.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                let_through(error)
                text = str(error).strip().partition("\n")[0]
                say_once(
                    f"{doing} failed ({type(error).__name__}: {text}); the program continues",
                    about=f"{doing} {type(error).__name__}",
                )
                return None

        return guarded  # type: ignore[return-value]

    return decorate
