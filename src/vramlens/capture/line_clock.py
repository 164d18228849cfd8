"""The line clock: which line of one frame of a function was running when."""

from __future__ import annotations

import sys
import threading
import time
from array import array
from types import CodeType, FrameType
from typing import Any

MOST_ENTRIES = 1_000_000
"""Lines that a clock follows: 16 MB."""

_TRACED = "another tracer runs"


class _Thread(threading.local):
    """The clocks that run on one thread, by code."""

    def __init__(self) -> None:
        self.clocks: dict[CodeType, LineClock] = {}


_thread = _Thread()


class LineClock:
    """The line of one frame of a function that was running at each time: ``sys.monitoring``, before
    Python 3.12 ``sys.settrace``.

    Attributes:
        lines, times_ns: one entry each time that a line began: its number, the time since the
            epoch.
        hits: how often each line began.
        trouble: why it has not followed the frame all the time; "" where it has.
    """

    def __init__(self, code: CodeType) -> None:
        self._code, self._frame = code, 0
        self._before: Any = None
        self.lines, self.times_ns = array("q"), array("q")
        self.hits: dict[int, int] = {}
        self.trouble = ""

    def start(self) -> None:
        """Begins with the next frame of the code on this thread."""
        if sys.version_info >= (3, 12):
            self.trouble = (
                "" if _monitor(self._code) else "all of Python's monitoring tools are in use"
            )
            self._before = _thread.clocks.get(self._code)
            _thread.clocks[self._code] = self
        else:
            self._before = sys.gettrace()
            if self._before is None or isinstance(
                getattr(self._before, "__self__", None), LineClock
            ):
                sys.settrace(self._called)
            else:
                self.trouble = _TRACED

    def stop(self) -> None:
        """Ends; what was there before goes on."""
        if sys.version_info >= (3, 12):
            _thread.clocks.pop(self._code, None)
            if self._before is not None:
                _thread.clocks[self._code] = self._before
        elif not self.trouble:
            if sys.gettrace() == self._called:
                sys.settrace(self._before)
            else:  # a debugger was started in the middle
                self.trouble = _TRACED
        if not self.trouble and not self.lines:
            self.trouble = "none of its lines was seen to run"  # compiled, say
        elif not self.trouble and len(self.lines) >= MOST_ENTRIES:
            self.trouble = f"more than {MOST_ENTRIES:,} lines were run"

    def add(self, frame: FrameType, line: int) -> None:
        """A line of a frame begins."""
        if not self._frame:
            self._frame = id(frame)
        if self._frame == id(frame):
            self.hits[line] = self.hits.get(line, 0) + 1
            if len(self.lines) < MOST_ENTRIES:
                self.lines.append(line)
                self.times_ns.append(time.time_ns())

    def _called(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        return self._traced if frame.f_code is self._code and not self._frame else None

    def _traced(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "line":
            self.add(frame, frame.f_lineno)
        return self._traced


if sys.version_info >= (3, 12):
    _TOOLS = (3, 4, sys.monitoring.PROFILER_ID)

    def _monitor(code: CodeType) -> bool:
        """Has Python tell of the lines of a code from now on; whether it does."""
        tool = next((n for n in _TOOLS if sys.monitoring.get_tool(n) == "vramlens"), None)
        if tool is None:
            tool = next((n for n in _TOOLS if sys.monitoring.get_tool(n) is None), None)
            if tool is None:
                return False
            sys.monitoring.use_tool_id(tool, "vramlens")
            sys.monitoring.register_callback(tool, sys.monitoring.events.LINE, _line_began)
        sys.monitoring.set_local_events(tool, code, sys.monitoring.events.LINE)
        return True

    def _line_began(code: CodeType, line: int) -> None:
        clock = _thread.clocks.get(code)
        if clock is not None:
            clock.add(sys._getframe(1), line)
