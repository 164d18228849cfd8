"""Threads of vramlens's own in the user's program, which the program neither sees nor waits for.

Programs join all that ``threading.enumerate`` gives, or wait until ``threading.active_count`` is 1:
a daemon of ours there would keep them for ever. And where gevent or eventlet have put greenlets in
the place of threads, one that waits in C would stop the whole program. So these threads are the
system's, and ``threading`` hears nothing of them.

A program that blocks a signal waits for it by ``sigwait`` or a descriptor: the system would give it
to a thread of ours that does not block it, and the program would die of it. So ours block them all.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

Started = TypeVar("Started")


def _unpatched(name: str) -> Any:
    """A function of ``_thread`` as Python brings it, also where gevent has replaced it before we
    came.
    """
    function = getattr(_thread, name)
    if type(function) is not types.BuiltinFunctionType:
        monkey: Any = sys.modules.get("gevent.monkey")
        with suppress(Exception):
            function = monkey.get_original("_thread", name)
    return function


_start_new_thread = _unpatched("start_new_thread")
allocate_lock: Callable[[], Any] = _unpatched("allocate_lock")
"""A lock between threads of the system."""
get_ident: Callable[[], int] = _unpatched("get_ident")
"""The number of the thread of the system that asks."""


_FAULTS = frozenset(
    getattr(signal, name, signal.SIGABRT)
    for name in ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")
)
"""Signals of what a thread itself does wrong: who blocks them is killed without a word of why."""


def started_without_signals(start: Callable[[], Started]) -> Started:
    """What ``start`` gives. A thread that it starts gets no signal of the program's."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        return start()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # A handler of the program's that is due raises from any of these calls.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
        return start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before & signal.valid_signals())


class OwnThread:
    """A thread that ends with the process at the latest."""

    def __init__(self, work: Callable[[], object]) -> None:
        """Prepares.

        Args:
            work: what the thread does; an error in it ends the thread, and nothing else.
        """
        self._work = work
        self._is_running = allocate_lock()
        self._ident = self._pid = 0

    def start(self) -> None:
        """Starts it.

        Raises:
            RuntimeError: there can be no new thread: too many, or the interpreter is shutting down.
        """
        try:
            self._is_running.acquire()
            self._pid = os.getpid()
            started_without_signals(lambda: _start_new_thread(self._run, ()))
        except BaseException:
            self._release()
            raise

    def join(self, seconds: float = -1) -> bool:
        """Waits for its end, by default without a bound. Whether it has ended: in a child that the
        program has forked it is not there.
        """
        if self._pid not in (0, os.getpid()):
            return True
        ended: bool = self._is_running.acquire(timeout=seconds)
        if ended:
            self._is_running.release()
        return ended

    @property
    def is_current(self) -> bool:
        """True where it is the one that asks."""
        return self._ident == get_ident()

    def _run(self) -> None:
        self._ident = get_ident()  # here: the thread may run before its start has returned
        try:
            with suppress(Exception):
                self._work()
        finally:
            self._release()

    def _release(self) -> None:
        with suppress(RuntimeError):  # a handler of the program's raised when it had just started
            self._is_running.release()


class OwnEvent:
    """Something that happens once, to wait for: ``threading.Event`` without what gevent replaces
    in it.
    """

    def __init__(self) -> None:
        self._has_not_come = allocate_lock()
        self._has_not_come.acquire()
        self.is_set = False

    def set(self) -> None:
        """Has it happen; again changes nothing. For one thread."""
        if not self.is_set:
            self.is_set = True
            self._has_not_come.release()

    def wait(self, seconds: float) -> None:
        """Waits for it, for so long at most."""
        if self._has_not_come.acquire(timeout=seconds):
            self._has_not_come.release()


def wait(seconds: float) -> None:
    """Returns after that time. Not ``time.sleep``, in whose place gevent may have put its own."""
    OwnEvent().wait(seconds)
