"""Errors that a signal handler of the program raised inside a callback which C code calls.

Such a caller (the garbage collector, ctypes) prints an error and forgets it, so that a timeout by
``signal.alarm`` or a Ctrl-C would be lost. ``raise_after_callback`` has the main thread raise it
once the callback has returned: by a pending call, which the interpreter makes between two
instructions of the main thread, and whose error goes on as if the program had raised it there.
Lost is only what comes at the first instruction of a callback, before its ``try``.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

from vramlens.capture.process.own_thread import OwnThread, wait
from vramlens.ground.program_errors import is_of_program

_SECONDS_BETWEEN_TRIES = 0.001
_pending: list[_PendingError] = []
"""Keeps them alive: the interpreter only borrows what it is to call."""


def raise_after_callback(error: BaseException) -> None:
    """Has the main thread raise an error from inside the calling callback, unless it is our own."""
    if isinstance(error, Exception) and not is_of_program(error):
        return
    pending = _PendingError(error, sys._getframe(1).f_code)
    _pending.append(pending)
    pending.raise_soon()


class _PendingError:
    """Raises its error when C asks for its truth: ``PyObject_IsTrue`` has the form of a pending
    call.
    """

    def __init__(self, error: BaseException, callback: CodeType) -> None:
        self._error, self._callback = error, callback

    def raise_soon(self) -> None:
        """Has the main thread ask, from a thread of ours: asked at once, it would still be inside
        the callback.
        """
        with suppress(RuntimeError):  # no new thread any more: the interpreter is shutting down
            OwnThread(self._ask).start()

    def __bool__(self) -> bool:
        if self._is_in_callback(sys._getframe(1)):
            self.raise_soon()
            return False
        _pending.remove(self)
        raise self._error

    def _ask(self) -> None:
        add_pending_call = ctypes.pythonapi.Py_AddPendingCall
        add_pending_call.argtypes = [ctypes.c_void_p, ctypes.py_object]
        truth = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
        wait(_SECONDS_BETWEEN_TRIES)
        while add_pending_call(truth, self) != 0:  # its queue of 32 or more is full
            wait(_SECONDS_BETWEEN_TRIES)

    def _is_in_callback(self, frame: FrameType | None) -> bool:
        """Whether a frame runs in the callback, or in another one of the collector's: it would
        forget the error, too.
        """
        codes = {self._callback, *map(_code_of, gc.callbacks)}
        while frame is not None:
            if frame.f_code in codes:
                return True
            frame = frame.f_back
        return False


def _code_of(callback: Any) -> CodeType | None:
    return getattr(callback, "__code__", None) or getattr(type(callback).__call__, "__code__", None)
