"""Heads of loops that are reached, as tracing tells them: up to Python 3.11.

It costs 2.5 µs an event of any function, and is on only in the program's first moments. Short
programs are traced to their end.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from time import thread_time
from types import FrameType
from typing import Any

from vramlens.capture.process.late_errors import raise_after_callback
from vramlens.capture.process.thread_trace import C_TRACE, set_trace
from vramlens.live.turns.user_loops import Loop, UserLoops

_CALL, _LINE = 0, 2
_MOST_EVENTS = 30_000
"""75 ms at 2.5 µs. Half as many end within the import of one library of medium size (asyncio: 8,000
events), twice as many would be a tenth of a run of a second and a half.
"""
_MOST_SECONDS = 0.5
"""Of the processor: a library's loop in Python runs slower while anybody traces, without an event.
Half of it ends before 60 requests of 5 ms have, twice as long is felt at the program's start.
"""
_EVENTS_BETWEEN_CLOCKS = 64
"""A clock is read in 0.1 µs: unseen beside as many events, which take 0.2 ms."""


class TracedHeads:
    """Traces the thread that begins it.

    Attributes:
        is_on: whether heads are still told.
        leaves_out: whether loops turn that are not told: none are.
    """

    leaves_out = False

    def __init__(self, came_to: Callable[[Loop, FrameType], bool]) -> None:
        """Begins.

        Args:
            came_to: is called where a loop's head is reached, with the frame that the loop is in.
        """
        self._came_to = came_to
        self._loops = UserLoops()
        self._events = 0
        self._began, self._thread = thread_time(), threading.get_ident()
        self._callback = C_TRACE(self._event)
        self.is_on = True
        set_trace(self._callback, self)

    def stop(self) -> None:
        """Tells no more heads; asked on another thread, tracing ends with its next event."""
        self.is_on = False
        tracer: Any = sys.gettrace()
        if tracer is self and threading.get_ident() == self._thread:
            set_trace(None, None)

    def another_unit(self) -> None:
        """Does nothing: all heads are told."""

    def _event(self, _self: Any, frame: Any, what: int, _argument: Any) -> int:
        try:
            self._events += 1
            if not self.is_on or self._is_over():
                self.stop()
                return 0
            loops = self._loops.of_file(frame.f_code)
            if what == _LINE and frame.f_lineno in loops:
                self._came_to(loops[frame.f_lineno], frame)
            elif what == _CALL and not loops:
                frame.f_trace_lines = False
        except BaseException as error:
            with suppress(Exception):
                self.stop()
                raise_after_callback(error)
        return 0

    def _is_over(self) -> bool:
        if self._events % _EVENTS_BETWEEN_CLOCKS:
            return False
        return self._events > _MOST_EVENTS or thread_time() - self._began > _MOST_SECONDS
