"""Keeping the interpreter's lock, and the collector away, while all objects are looked at."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

from vramlens.capture.process.own_thread import allocate_lock

_SLICE_S = 0.05
_lock = allocate_lock()
_wanted: list[float] = []
_programs_interval = 0.0
_to_enable_again: list[None] = []  # an entry for each section that turned the collector off


@contextlib.contextmanager
def no_other_thread() -> Iterator[None]:
    """As far as that can be had, no other thread runs inside: what is looked at stays what it is.

    While all objects are looked at, all are alive: a tensor that another thread gives up is freed
    only afterwards. A thread that computes still takes its turn after ``_SLICE_S``: a look that
    has once let go of the lock waits that long for it, and the program's step waits with it.
    """
    with switch_interval_of(_SLICE_S):
        yield


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection inside: millions of small dicts, none of them garbage, cost it more
    than making them; and it runs the program's finalizers.
    """
    if not gc.isenabled():
        yield
        return
    _to_enable_again.append(None)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _to_enable_again.pop()


def does_program_collect() -> bool:
    """Whether the program lets the garbage collector run: also true inside ``no_collection``."""
    return gc.isenabled() or bool(_to_enable_again)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """No collection inside, and no other thread as far as that can be had."""
    with no_collection(), no_other_thread():
        yield


@contextlib.contextmanager
def switch_interval_of(seconds: float) -> Iterator[float]:
    """The interval that held before; inside it is so long at least.

    Several threads may be in here: the longest that one of them wants holds, and the last to leave
    restores what the program had.
    """
    global _programs_interval
    with _lock:
        before = sys.getswitchinterval()
        if not _wanted:
            _programs_interval = before
        _wanted.append(seconds)
        sys.setswitchinterval(max(_wanted))
    try:
        yield before
    finally:
        with _lock:
            _wanted.remove(seconds)
            sys.setswitchinterval(max(_wanted) if _wanted else _programs_interval)
