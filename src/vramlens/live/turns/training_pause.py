"""When training is over, or pauses for long: no optimizer has stepped for a while.

What follows is served, searched or evaluated by other steps. A usual validation is none: the next
one is expected to take as long as the last.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from weakref import WeakMethod

from vramlens.capture.process.own_thread import OwnEvent, OwnThread

_LEAST_S = 0.5
"""Twice as long leaves too little of a program that serves for two seconds; half as long is a batch that
comes late. A checkpoint that is written takes longer, and costs one look at what follows.
"""
_SOON_S = 0.01
"""Waited at least, where the time has come as it was asked."""
_TIMES_LONGEST = 4
"""Of the longest time between two steps so far: accumulated batches, a validation."""


class TrainingPause:
    """Tells, from a thread of its own, that no optimizer steps any more: once until the next step, as
    long as there is somebody to tell.
    """

    def __init__(self, paused: Callable[[], None]) -> None:
        """Begins with the first step.

        Args:
            paused: a method, whose object it does not keep.
        """
        self._paused = WeakMethod(paused)
        self._last = monotonic()
        self._longest = 0.0
        self._is_told = False
        self._ended = OwnEvent()
        with suppress(RuntimeError):  # no new thread: the training's steps are all there is
            OwnThread(self._run).start()

    def stepped(self) -> None:
        """An optimizer has stepped."""
        now = monotonic()
        self._longest = max(self._longest, now - self._last)
        self._last, self._is_told = now, False

    def stop(self) -> None:
        """Tells no more."""
        self._ended.set()

    def look(self) -> None:
        """Tells it if that is so, and was not told yet."""
        paused = self._paused()
        if paused is None:
            self.stop()
        elif not self._is_told and self._seconds_left < 0:
            self._is_told = True
            paused()

    @property
    def _seconds_left(self) -> float:
        """Until it is a pause; below 0 of one."""
        patience = max(_LEAST_S, _TIMES_LONGEST * self._longest)
        return self._last + patience - monotonic()

    def _run(self) -> None:
        while not self._ended.is_set:
            self._ended.wait(_LEAST_S if self._is_told else max(self._seconds_left, _SOON_S))
            if not self._ended.is_set:
                self.look()
