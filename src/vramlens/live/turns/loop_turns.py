"""Steps of programs that call no model either: the turns of their outermost loop.

A script that decodes files, or a server with a loop over its requests, does its work in turns. They
are seen where a loop's head is reached, never where a debugger or coverage traces.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from threading import get_ident, main_thread
from time import monotonic
from types import FrameType

from vramlens.capture.process.thread_trace import can_trace
from vramlens.live.heap.objects import frames_from
from vramlens.live.turns.loop_entries import Entries
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
_LEAST_INNER_SHARE = 0.2
"""Of the time of a turn: what the unit takes within it. A loop over epochs spends nearly all of it on its
batches; a loop that looks up each name of a batch is none of these.
"""
_MOST_ENTRIES = 8
"""Of the unit without a turn of a loop around it, where there is one: a function with a loop that is
called so often does a part of a turn's work.
"""
_UNASKED_ENTRIES = 1000
"""Until it is asked again whether a loop is around: asking takes up to a millisecond."""
_DEEPEST = 200
"""Functions around a loop that are asked whether they are in the unit's: recursion ends there."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """The head of a loop around the unit: turns of the unit so far, the seconds that they took, and
    when it was.
    """

    turns: int
    inside_seconds: float
    seconds: float


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
        self._before: dict[Loop, _Moment] = {}
        self._former: set[Loop] = set()
        self._entries, self._unit_entries = Entries(), 0
        self._inside_seconds = self._last_head = 0.0
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
        is_entry = self._entries.came_to(loop, frame.f_lasti)
        if loop == self.loop:
            return self._unit_turned(frame, is_entry=is_entry)
        self._unit_entries = 0
        if loop in self._former:
            return False
        if not self._turns_on(loop):
            return True
        if self.is_within(frame):
            return False
        self._choose(loop)
        return True

    def _unit_turned(self, frame: FrameType, *, is_entry: bool) -> bool:
        """A turn of the unit; False where its loop is a part of a turn of another one."""
        now = monotonic()
        if is_entry:
            self._unit_entries += 1
            if self._unit_entries > _MOST_ENTRIES:
                if self._is_enclosed(frame):
                    self._leave_unit()
                    return False
                self._unit_entries = -_UNASKED_ENTRIES
        else:
            self._inside_seconds += now - self._last_head
        self._last_head = now
        self.turns += 1
        self._turned(frame)
        return True

    def _is_enclosed(self, frame: FrameType) -> bool:
        """Whether a function that called this one is in another loop that can be the unit."""
        callers = list(islice(frames_from(frame.f_back), _DEEPEST))
        others = self._counts.keys() - self._former - {self.loop}
        return any(loop.runs_in(caller) for caller in callers for loop in others)

    def _turns_on(self, loop: Loop) -> bool:
        """Whether a loop has turned often, and takes a few of the unit's turns for one of its own, or
        little of its time for them.
        """
        count = self._counts[loop] = self._counts.get(loop, 0) + 1
        now = _Moment(self.turns, self._inside_seconds, monotonic())
        before = self._before.get(loop, now)
        self._before[loop] = now
        return count >= _FIRST_TURNS and (
            now.turns - before.turns <= _MOST_INNER_TURNS
            or now.inside_seconds - before.inside_seconds
            < _LEAST_INNER_SHARE * (now.seconds - before.seconds)
        )

    def _leave_unit(self) -> None:
        """Has no unit, until another loop turns often."""
        if self.loop is not None:
            self._former.add(self.loop)
        self.loop, self.turns = None, 0
        self._before.clear()
        self._unit_entries, self._inside_seconds = 0, 0.0

    def _choose(self, loop: Loop) -> None:
        self._leave_unit()
        self.loop, self._last_head = loop, monotonic()
        if self._heads is not None:
            self._heads.another_unit()
        self._chosen()
