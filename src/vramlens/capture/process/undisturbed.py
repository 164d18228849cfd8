"""Keeping the interpreter's lock while all objects are looked at."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

from vramlens.capture.process.own_thread import allocate_lock

_SLICE_S = 0.05
_lock = allocate_lock()
_inside = 0
_programs_interval = 0.0


@contextlib.contextmanager
def no_other_thread() -> Iterator[None]:
    """As far as that can be had, no other thread runs inside: what is looked at stays what it is.

    While all objects are looked at, all are alive: a tensor that another thread gives up is freed
    only afterwards. A thread that computes still takes its turn after ``_SLICE_S``: a look that
    has once let go of the lock waits that long for it, and the program's step waits with it.
    Several threads may be in here, one after the other: the last to leave restores what the
    program had.
    """
    global _inside, _programs_interval
    with _lock:
        if not _inside:
            _programs_interval = sys.getswitchinterval()
            sys.setswitchinterval(_SLICE_S)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                sys.setswitchinterval(_programs_interval)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """No collection inside, and no other thread as far as that can be had."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with no_other_thread():
            yield
    finally:
        if collecting:
            gc.enable()
