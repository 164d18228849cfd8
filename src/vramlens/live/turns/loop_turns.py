"""Steps of programs that call no model either: the turns of their outermost loop.

A script that decodes files, or a server with a loop over its requests, does its work in turns. They
are seen by tracing the user's lines, at 2.5 µs an event of any function: so only in the program's
first moments, and never where a debugger or coverage traces. Short programs are traced to their
end; in longer ones time is the unit after that.
"""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from os.path import basename
from time import thread_time
from types import CodeType, FrameType
from typing import Any

from vramlens.capture.process.late_errors import raise_after_callback
from vramlens.capture.process.thread_trace import C_TRACE, can_trace, set_trace
from vramlens.live.heap.objects import frames_from, is_users
from vramlens.live.source.source_tree import tree_of

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
_FIRST_TURNS = 3
"""Turns that make a loop the unit. Two are also a pair (train and test), and five would leave too
few of a loop of ten.
"""
_MOST_INNER_TURNS = 16
"""Turns of the unit within one turn of the loop around it: with more the loop around it is over
epochs, of which there are too few to judge by. A request's own loops (three tries, eight chunks)
stay below; few epochs have so few batches.
"""
_DEEPEST = 200
"""Functions around a loop that are asked whether they are in the unit's: recursion ends there."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop in the user's source: its file, and first and last line."""

    file: str
    line: int
    last_line: int

    @property
    def place(self) -> str:
        """Its place as it is printed."""
        return f"{basename(self.file)}:{self.line}"

    def runs_in(self, frame: FrameType) -> bool:
        """Whether a function is inside of it."""
        line = frame.f_lineno or 0
        return frame.f_code.co_filename == self.file and self.line <= line <= self.last_line


class LoopTurns:
    """Tells each turn of the outermost loop that turns now, on the thread that begins it.

    Attributes:
        loop: the unit; None before any has turned often enough.
        turns: of the unit, that have ended.
        all_turns: heads of loops that were reached, of whichever loop.
        is_tracing: whether turns are still seen.
    """

    def __init__(self, turned: Callable[[FrameType], None], chosen: Callable[[], None]) -> None:
        """Prepares.

        Args:
            turned: is called at the end of each turn, with the frame that the loop is in.
            chosen: is called where another loop becomes the unit, before its turns.
        """
        self._turned, self._chosen = turned, chosen
        self.loop: Loop | None = None
        self.turns = 0
        self._counts: dict[Loop, int] = {}
        self._turns_before: dict[Loop, int] = {}
        self._former: set[Loop] = set()
        self._loops_by_file: dict[str, Mapping[int, Loop]] = {}
        self._events = 0
        self._began = 0.0
        self._thread = 0
        self._callback: Any = None
        self.is_tracing = False
        self.all_turns = 0

    def begin(self) -> None:
        """Traces this thread, unless somebody else does."""
        if sys.gettrace() is not None or not can_trace():
            return
        self._began, self._thread = thread_time(), threading.get_ident()
        self._callback = C_TRACE(self._event)
        self.is_tracing = True
        set_trace(self._callback, self)

    def stop(self) -> None:
        """Tells no more turns; asked on another thread, tracing ends with its next event."""
        self.is_tracing = False
        tracer: Any = sys.gettrace()
        if tracer is self and threading.get_ident() == self._thread:
            set_trace(None, None)

    def _event(self, _self: Any, frame: Any, what: int, _argument: Any) -> int:
        try:
            self._events += 1
            if not self.is_tracing or self._is_over():
                self.stop()
                return 0
            loops = self._loops_of(frame.f_code)
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

    def _came_to(self, loop: Loop, frame: FrameType) -> None:
        """A loop's head is reached: a turn ends, or the first begins."""
        self.all_turns += 1
        if loop == self.loop:
            self.turns += 1
            self._turned(frame)
        elif loop not in self._former and self._is_outer(loop, frame):
            if self.loop is not None:
                self._former.add(self.loop)
            self.loop, self.turns = loop, 0
            self._turns_before.clear()
            self._chosen()

    def _is_outer(self, loop: Loop, frame: FrameType) -> bool:
        """Whether a loop becomes the unit: it turns on, and the unit's loop is over or is one of a
        few turns inside of it.
        """
        count = self._counts[loop] = self._counts.get(loop, 0) + 1
        inner_turns = self.turns - self._turns_before.get(loop, self.turns)
        self._turns_before[loop] = self.turns
        if count < _FIRST_TURNS or inner_turns > _MOST_INNER_TURNS:
            return False
        unit = self.loop
        return unit is None or not any(map(unit.runs_in, islice(frames_from(frame), _DEEPEST)))

    def _loops_of(self, code: CodeType) -> Mapping[int, Loop]:
        """The loops of the user's file that a function is in, by first line; empty for others'."""
        file = code.co_filename
        loops = self._loops_by_file.get(file)
        if loops is None:
            loops = self._loops_by_file[file] = _loops_in(file) if is_users(file) else {}
        return loops


def _loops_in(file: str) -> dict[int, Loop]:
    tree = tree_of(file)
    statements = () if tree is None else ast.walk(tree)
    return {
        node.lineno: Loop(file, node.lineno, node.end_lineno or node.lineno)
        for node in statements
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While))
    }
