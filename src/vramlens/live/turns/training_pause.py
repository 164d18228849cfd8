"""When training is over, or pauses for long: no optimizer has stepped for a while.

What follows is served, searched or evaluated by other steps. A usual validation is none: the next
one is expected to take as long as the last.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import monotonic, process_time
from weakref import WeakMethod

from vramlens.capture.process.own_thread import OwnEvent, OwnThread

_LEAST_S = 0.5
"""Twice as long leaves too little of a program that serves for two seconds; half as long is a batch that
comes late. A checkpoint that is written takes longer, and costs one look at what follows.
"""
_SOON_S = 0.01
"""Waited at least, where the time has come as it was asked."""
_TIMES_LONGEST = 4
"""Of the longest time between two steps so far: accumulated batches, a validation. Twice as long is a step
with a larger batch, eight times as long would be most of a short evaluation.
"""


class _Patience:
    """How long no step may end by one clock, before it is a pause."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._longest = 0.0
        self._last = clock()

    def step_begins(self) -> None:
        """From now on the program's time counts."""
        self._last = self._clock()

    def step_ends(self) -> None:
        """It has counted until now."""
        self._longest = max(self._longest, self.elapsed_s)

    @property
    def elapsed_s(self) -> float:
        """Since the latest step."""
        return self._clock() - self._last

    @property
    def left_s(self) -> float:
        """Until it is a pause; below 0 of one."""
        return max(_LEAST_S, _TIMES_LONGEST * self._longest) - self.elapsed_s


class TrainingPause:
    """Tells, from a thread of its own, that no optimizer steps any more: once until the next step, as
    long as there is somebody to tell.

    Half a second passes in any case. Then it is a pause by the time that passes, or by what the
    process computes: on a busy machine one step among thousands is so long that four times its
    time would be all of a short program's rest. What the watch itself does at a step's end is no
    time between two steps.
    """

    def __init__(self, paused: Callable[[], bool | None]) -> None:
        """Begins with the first step.

        Args:
            paused: a method, whose object it does not keep; False where it cannot be told now.
        """
        self._paused = WeakMethod(paused)
        self._passed, self._computed = _Patience(monotonic), _Patience(process_time)
        self._is_told = False
        self._ended = OwnEvent()
        with suppress(RuntimeError):  # no new thread: the training's steps are all there is
            OwnThread(self._run).start()

    def stepped(self) -> None:
        """An optimizer has stepped."""
        for patience in (self._passed, self._computed):
            patience.step_ends()
        self.goes_on()

    def goes_on(self) -> None:
        """The program goes on after a step, and after what the watch did at its end."""
        for patience in (self._passed, self._computed):
            patience.step_begins()
        self._is_told = False

    def stop(self) -> None:
        """Tells no more."""
        self._ended.set()

    def look(self) -> None:
        """Tells it if that is so, and was not told yet; again where it could not be told."""
        paused = self._paused()
        if paused is None:
            self.stop()
        elif not self._is_told and self._seconds_left < 0:
            self._is_told = True  # before: a step may end meanwhile, and it is to be told again
            if paused() is False:
                self._is_told = False

    @property
    def _seconds_left(self) -> float:
        """Until it is a pause; below 0 of one."""
        left_s = min(self._passed.left_s, self._computed.left_s)
        return max(_LEAST_S - self._passed.elapsed_s, left_s)

    def _run(self) -> None:
        while not self._ended.is_set:
            left_s = min(max(self._seconds_left, _SOON_S), _LEAST_S)  # computing may go faster
            self._ended.wait(_LEAST_S if self._is_told else left_s)
            if not self._ended.is_set:
                self.look()
