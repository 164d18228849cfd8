"""Ctrl-C: whether it came, also where a destructor swallowed it or a library made another error of
it.

Python raises KeyboardInterrupt wherever the main thread happens to be. In a destructor it is
printed and forgotten; in the middle of an import it may come out as an ImportError. Neither may
look like an answer.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any

EXIT_CODE = 130

_has_come = False
_is_watched = False


def watch() -> None:
    """Notes from here on that Ctrl-C came; only where it raises KeyboardInterrupt anyway, in the
    main thread.
    """
    global _has_come, _is_watched
    _has_come = False
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    try:
        signal.signal(signal.SIGINT, _note)
    except ValueError:  # not the main thread
        return
    _is_watched = True
    sys.unraisablehook = _quiet_about_interrupts


def leave() -> None:
    """Gives Ctrl-C back to Python, before a program or a server whose business it is; what came
    stays noted.
    """
    global _is_watched
    if _is_watched:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = sys.__unraisablehook__
        _is_watched = False


def came() -> bool:
    """Whether Ctrl-C came while it was watched for."""
    return _has_come


def _note(number: int, frame: FrameType | None) -> None:
    global _has_come
    _has_come = True
    signal.default_int_handler(number, frame)


def _quiet_about_interrupts(unraisable: Any) -> None:
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
