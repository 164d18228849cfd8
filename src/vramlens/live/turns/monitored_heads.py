"""Heads of loops that are reached, as ``sys.monitoring`` tells them: from Python 3.12 on.

Only functions with a loop of the user's are watched, and of their lines only the heads: all others
run as fast as ever, so it can go on to the program's end. What it costs is the turns themselves.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from types import CodeType, FrameType
from typing import Any
from weakref import WeakValueDictionary

from vramlens.ground.program_errors import let_through
from vramlens.live.heap.objects import frames_from
from vramlens.live.turns.user_loops import Loop, UserLoops

_TOOLS = (4, 3)
"""Numbers that Python gives to no kind of tool: debuggers, coverage, profilers and optimizers have theirs."""
_TURN_SECONDS = 0.0003
"""Of the processor, for the end of a step; what looks take has rations of its own. Not read from a clock:
on a busy machine it would be more, and the answer another.
"""
_FREE_SECONDS, _SHARE = 0.5, 0.02
"""For the turns: once, and of the run. Turns of 15 ms are told to the end; of a loop of a million so many
that growth can be judged.
"""
_MOST_USELESS = 64
"""Turns of a loop inside the unit's, or on other threads, after which it is left out: three make a
unit, and a loop of a million turns shall not feel it.
"""


def can_monitor() -> bool:
    """Whether this Python tells lines, and a number is free."""
    monitoring = _monitoring()
    return monitoring is not None and any(monitoring.get_tool(tool) is None for tool in _TOOLS)


class MonitoredHeads:
    """Watches the functions that start from now on, and those that run on the main thread.

    Attributes:
        is_on: whether heads are still told.
        leaves_out: whether loops turn that are not told.
    """

    def __init__(self, came_to: Callable[[Loop, FrameType], bool]) -> None:
        """Begins.

        Args:
            came_to: is called where the main thread reaches a loop's head, with the frame that the
                loop is in; False where that was of no use.
        """
        self._came_to = came_to
        self._loops = UserLoops()
        self._pid, self._thread = os.getpid(), threading.main_thread().ident
        # By id: equal codes are not the same. Weak: a program may compile anew in each turn.
        self._codes: WeakValueDictionary[int, CodeType] = WeakValueDictionary()
        self._useless: Counter[Loop] = Counter()
        self._began, self._turns = monotonic(), 0
        self._monitoring = _monitoring()
        self._tool = self._own_number()
        self.leaves_out = False
        if self.is_on:
            self._begin()

    @property
    def is_on(self) -> bool:
        return self._tool is not None

    def stop(self) -> None:
        """Tells no more heads, and gives the number back."""
        tool, self._tool = self._tool, None
        if tool is None:
            return
        monitoring, events = self._monitoring, self._monitoring.events
        monitoring.set_events(tool, events.NO_EVENTS)
        for code in list(self._codes.values()):
            monitoring.set_local_events(tool, code, events.NO_EVENTS)
        for event in (events.PY_START, events.LINE):
            monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)
        self._codes.clear()

    def another_unit(self) -> None:
        """Tells again what was left out: it may be inside of the unit no longer."""
        self._useless.clear()
        if not self.leaves_out or self._tool is None:
            return
        self.leaves_out = False
        for code in list(self._codes.values()):
            self._watch(code, self._monitoring.events.NO_EVENTS)
            self._watch(code, self._monitoring.events.LINE)

    def _own_number(self) -> int | None:
        for tool in _TOOLS:
            with suppress(ValueError):  # it is taken
                self._monitoring.use_tool_id(tool, "vramlens")
                return tool
        return None

    def _begin(self) -> None:
        monitoring, events = self._monitoring, self._monitoring.events
        monitoring.register_callback(self._tool, events.PY_START, self._started)
        monitoring.register_callback(self._tool, events.LINE, self._line)
        monitoring.set_events(self._tool, events.PY_START)
        for frame in frames_from(sys._current_frames().get(self._thread or 0)):
            self._started(frame.f_code)

    def _watch(self, code: CodeType, events: int) -> None:
        self._monitoring.set_local_events(self._tool, code, events)

    def _started(self, code: CodeType, _offset: int = 0) -> Any:
        """A function has started for the first time."""
        try:
            loops = self._loops.of_file(code)
            if loops and any(line in loops for _, _, line in code.co_lines()):
                self._codes[id(code)] = code
                self._watch(code, self._monitoring.events.LINE)
        except Exception as error:
            let_through(error)
            self.stop()
        return self._monitoring.DISABLE

    def _line(self, code: CodeType, line: int) -> Any:
        """A line is reached: what is no loop's head is not told again."""
        try:
            loop = self._loops.of_file(code).get(line)
            if loop is None:
                return self._monitoring.DISABLE
            if self._is_of_use(loop, sys._getframe(1)):
                return None
            self._useless[loop] += 1
            if self._useless[loop] <= _MOST_USELESS:
                return None
            self.leaves_out = True
        except Exception as error:
            let_through(error)
            self.stop()
        return self._monitoring.DISABLE

    def _is_of_use(self, loop: Loop, frame: FrameType) -> bool:
        if threading.get_ident() != self._thread:
            return False
        if os.getpid() != self._pid:  # a child that the program has forked
            self.stop()
            return False
        self._turns += 1
        elapsed = monotonic() - self._began
        if self._turns * _TURN_SECONDS > _FREE_SECONDS + _SHARE * elapsed:
            self.stop()
            return False
        return self._came_to(loop, frame)


def _monitoring() -> Any:
    """``sys.monitoring``; None before Python 3.12."""
    return getattr(sys, "monitoring", None)
