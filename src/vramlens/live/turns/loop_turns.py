"""Steps of programs that call no model either: the turns of their outermost loop.

A script that decodes files, or a server with a loop over its requests, does its work in turns. They
are seen where a loop's head is reached, never where a debugger or coverage traces.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import islice
from threading import get_ident, main_thread
from types import FrameType

from vramlens.capture.process.thread_trace import can_trace
from vramlens.live.heap.objects import frames_from
from vramlens.live.turns.monitored_heads import MonitoredHeads, can_monitor
from vramlens.live.turns.traced_heads import TracedHeads
from vramlens.live.turns.user_loops import Loop

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


class LoopTurns:
    """Tells each turn of the outermost loop that turns now, on the main thread.

    Attributes:
        loop: the unit; None before any has turned often enough.
        turns: of the unit, that have ended.
        all_turns: heads of loops that were reached, of whichever loop.
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
        self.all_turns = 0
        self._counts: dict[Loop, int] = {}
        self._turns_before: dict[Loop, int] = {}
        self._former: set[Loop] = set()
        self._heads: MonitoredHeads | TracedHeads | None = None

    @property
    def sees_turns(self) -> bool:
        """Whether turns are still told."""
        return self._heads is not None and self._heads.is_on

    @property
    def leaves_out(self) -> bool:
        """Whether loops may turn whose turns are not told."""
        return self._heads is not None and self._heads.leaves_out

    def begin(self) -> None:
        """Looks at the main thread, unless somebody traces; from another one where it can."""
        if sys.gettrace() is not None or not can_trace():
            return
        if can_monitor():
            self._heads = MonitoredHeads(self._came_to)
        elif get_ident() == main_thread().ident:
            self._heads = TracedHeads(self._came_to)

    def stop(self) -> None:
        """Tells no more turns."""
        if self._heads is not None:
            self._heads.stop()

    def is_within(self, frame: FrameType) -> bool:
        """Whether a function, or one that called it, is in the unit's loop."""
        callers = islice(frames_from(frame), _DEEPEST)
        return self.loop is not None and any(map(self.loop.runs_in, callers))

    def _came_to(self, loop: Loop, frame: FrameType) -> bool:
        """A loop's head is reached: a turn ends, or the first begins. False where the loop is none
        that can become the unit as long as this one is.
        """
        self.all_turns += 1
        if loop == self.loop:
            self.turns += 1
            self._turned(frame)
            return True
        if loop in self._former:
            return False
        if not self._turns_on(loop):
            return True
        if self.is_within(frame):
            return False
        self._choose(loop)
        return True

    def _turns_on(self, loop: Loop) -> bool:
        """Whether a loop has turned often, and takes a few of the unit's turns for one of its own."""
        count = self._counts[loop] = self._counts.get(loop, 0) + 1
        inner_turns = self.turns - self._turns_before.get(loop, self.turns)
        self._turns_before[loop] = self.turns
        return count >= _FIRST_TURNS and inner_turns <= _MOST_INNER_TURNS

    def _choose(self, loop: Loop) -> None:
        if self.loop is not None:
            self._former.add(self.loop)
        self.loop, self.turns = loop, 0
        self._turns_before.clear()
        if self._heads is not None:
            self._heads.another_unit()
        self._chosen()
