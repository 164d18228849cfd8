"""The interpreter's switch interval, which several parts of vramlens lengthen for a moment."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from vramlens.capture.process.own_thread import allocate_lock

_lock = allocate_lock()
_wanted: list[float] = []
_programs_interval = 0.0


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
