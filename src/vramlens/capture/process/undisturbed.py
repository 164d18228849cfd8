"""Keeping the interpreter's lock, and the collector away, while all objects are looked at."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from vramlens.capture.process.switch_interval import switch_interval_of

_SLICE_S = 0.05


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
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """No collection inside, and no other thread as far as that can be had."""
    with no_collection(), no_other_thread():
        yield
