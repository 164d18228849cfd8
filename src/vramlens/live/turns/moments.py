"""Steps of programs in which nothing else can be counted: stretches of time.

A stretch counts only if the program ran in it: a server that waits for a request does not grow, nor
has it stopped growing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import process_time

from vramlens.capture.process.own_thread import OwnEvent, OwnThread

SECONDS = 0.1
"""Of a stretch. Twice as long would leave fewer than five in a program of a second; half as long
would wake the program 20 times a second, and find nothing in the half of them that a step of 100 ms
leaves empty.
"""
_LEAST_SECONDS = 0.001
"""Of the processor in a stretch that counts although as many objects went as came: this thread's
own wake-up takes a twentieth of it, eight short queries of an epilogue twice as long.
"""
_SECONDS_TO_END = 1.0
"""Waited for the thread's last look, which takes some hundredths of a second."""


class Moments:
    """Tells the end of each stretch of time, from a thread of its own."""

    def __init__(self, passed: Callable[[], None]) -> None:
        self._passed = passed
        self._ended = OwnEvent()
        self._thread = OwnThread(self._run)
        self._thread.start()

    def stop(self) -> None:
        """Tells no more, and waits for what is being told."""
        self._ended.set()
        if not self._thread.is_current:
            self._thread.join(_SECONDS_TO_END)

    def _run(self) -> None:
        counts, seconds = gc.get_count(), process_time()
        while not self._ended.is_set:
            self._ended.wait(SECONDS)
            has_run = gc.get_count() != counts or process_time() - seconds > _LEAST_SECONDS
            if has_run and not self._ended.is_set:
                self._passed()
                counts, seconds = gc.get_count(), process_time()
