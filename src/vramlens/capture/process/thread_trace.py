"""Tracing one thread with a function in C's sense (``PyEval_SetTrace``): unlike ``sys.settrace`` it
copies no local variables.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

C_TRACE = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.py_object, ctypes.py_object, ctypes.c_int, ctypes.c_void_p
)
"""Makes a trace function in C's sense of a method."""


def set_trace(callback: Any, holder: Any) -> None:
    """Traces this thread with a function in C's sense; with None no longer.

    Args:
        callback: the function.
        holder: what ``sys.gettrace()`` gives.
    """
    setter = ctypes.pythonapi.PyEval_SetTrace
    setter.restype = None
    if callback is None:
        setter.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        setter(None, None)
    else:
        setter.argtypes = [C_TRACE, ctypes.py_object]
        setter(callback, holder)


def can_trace() -> bool:
    """Whether this is CPython with its lock: others have no such function, or threads that would
    not be seen.
    """
    lock = getattr(sys, "_is_gil_enabled", None)
    return sys.implementation.name == "cpython" and (lock is None or bool(lock()))
