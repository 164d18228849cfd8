"""Entries of loops: heads that are reached from before a loop, not from the end of a turn.

A compiled loop evaluates at its first instruction what it goes over, or its condition, and comes back
to a later one.
"""

from __future__ import annotations

from vramlens.live.turns.user_loops import Loop


class Entries:
    """Tells entries from turns."""

    def __init__(self) -> None:
        self._first: dict[Loop, int] = {}
        self._has_turned: set[Loop] = set()

    def came_to(self, loop: Loop, instruction: int) -> bool:
        """Whether a loop was entered, as the instruction at its head says; False where that is not
        known, as all its heads are at one instruction so far.
        """
        first = self._first.get(loop)
        if first is None or instruction < first:
            self._first[loop] = instruction
        elif instruction > first:
            self._has_turned.add(loop)
            return False
        return loop in self._has_turned
