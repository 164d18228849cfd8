"""Errors that a signal handler of the program raised inside a callback which C code calls.

Such a caller (the garbage collector, ctypes) prints an error and forgets it, so that a timeout by
``signal.alarm`` or a Ctrl-C would be lost. ``raise_after_callback`` has the main thread raise it
once the callback has returned: by a pending call, which the interpreter makes between two
instructions of the main thread, and whose error goes on as if the program had raised it there.
Lost is only what comes at the first instruction of a callback, before its ``try``.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from contextlib import suppress
from types import FrameType

from vramlens.capture.process.own_thread import OwnThread, wait
from vramlens.ground.program_errors import is_of_program

_SECONDS_BETWEEN_LOOKS = 0.001
_SECONDS_BETWEEN_TRIES = 0.01
_pending: list[_PendingError] = []
"""Keeps them alive: the interpreter only borrows what it is to call."""


def raise_after_callback(error: BaseException) -> None:
    """Has the main thread raise an error from inside the calling callback, unless it is our own."""
    if isinstance(error, Exception) and not is_of_program(error):
        return
    callback = sys._getframe(1)
    with suppress(RuntimeError):  # no new thread any more: the interpreter is shutting down
        OwnThread(lambda: _raise_after(callback, error)).start()


def _raise_after(callback: FrameType, error: BaseException) -> None:
    """Has the main thread raise an error when it no longer runs a callback."""
    while _is_running(callback):
        wait(_SECONDS_BETWEEN_LOOKS)
    pending = _PendingError(error)
    _pending.append(pending)
    add_pending_call = ctypes.pythonapi.Py_AddPendingCall
    add_pending_call.argtypes = [ctypes.c_void_p, ctypes.py_object]
    truth = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
    while add_pending_call(truth, pending) != 0:  # its queue of 32 or more is full
        wait(_SECONDS_BETWEEN_TRIES)


def _is_running(callback: FrameType) -> bool:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame is callback:
            return True
        frame = frame.f_back
    return False


class _PendingError:
    """Raises its error when C asks for its truth: ``PyObject_IsTrue`` has the form of a pending
    call.
    """

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __bool__(self) -> bool:
        _pending.remove(self)
        raise self._error
