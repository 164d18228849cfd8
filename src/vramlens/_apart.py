"""A call on a thread of its own: Python runs signal handlers on the main thread, so that none
interrupts it.

An exception that a handler raises (Ctrl-C, an alarm) inside a callback from C is swallowed by
ctypes, and C goes on with a number that nobody wrote. ``Thread.join`` is not a way to wait for the
thread: interrupted, it may take a running thread for one that has ended
    (https://github.com/python/cpython/issues/89437).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_LOOK_AGAIN_S = 0.05


class _Call(Generic[T]):
    """One call, its thread, and how far it has come."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._gate = threading.Lock()
        self._ending = threading.Lock()
        self._ending.acquire()
        self._is_forbidden = self._has_begun = self._has_ended = False
        self.results: list[T] = []
        self.errors: list[BaseException] = []

    def run(self) -> None:
        """Does the work, unless it was called off before it began."""
        with self._gate:
            if self._is_forbidden:
                return
            self._has_begun = True
        try:
            self.results.append(self._work())
        except BaseException as error:  # raised again by the thread that waits
            self.errors.append(error)
        finally:
            self._has_ended = True
            self._ending.release()

    def wait(self) -> None:
        """Returns when the work has ended; may be interrupted, and called again."""
        while not self._has_ended:
            self._ending.acquire(timeout=_LOOK_AGAIN_S)

    def call_off(self) -> None:
        """Forbids work that has not begun; waits for the end of work that has, however often it
        is interrupted.
        """
        while True:
            try:
                with self._gate:
                    self._is_forbidden = True
                if self._has_begun:
                    self.wait()
                return
            # The first interruption is the one that is raised, once the thread has ended.
            except BaseException:
                continue


def call_apart(work: Callable[[], T], stop: Callable[[], None], undo: Callable[[T], None]) -> T:
    """The result of ``work``, which no signal's handler interrupts.

    Args:
        stop: makes the work end soon; called where the wait for it is interrupted.
        undo: what is done with a result that nobody will get, because the wait was interrupted.

    Raises:
        BaseException: what the work raised, or what interrupted the wait, after the work has ended.
    """
    call = _Call(work)
    try:
        threading.Thread(target=call.run, name="vramlens-call").start()
        call.wait()
    except BaseException:
        stop()
        call.call_off()
        for late_return in call.results:
            undo(late_return)
        raise
    if call.errors:
        raise call.errors[0]
    return call.results[0]
