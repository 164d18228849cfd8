"""SIGTERM, SIGHUP and SIGABRT: a recording before the process dies of the signal, as it would have.

When one rank fails, its launcher sends SIGTERM to the others, which wait in a collective, in C++,
where no handler written in Python ever runs; when a terminal closes, its programs get SIGHUP; when
a collective times out, NCCL's watchdog aborts the process. So the handler is the native core's
(native/termination.cpp): it wakes a thread that waits in the core, writes the recording and lets
the process die.

- The program sees nothing of it: ``signal.getsignal`` says SIG_DFL, and whatever handler the
program sets takes the
  place of this one, for good. Where a signal is handled or ignored already (``nohup``), nothing is
  done about it; but Python's own faulthandler prints its stacks once the recording is written.
- No descriptor is used: a program may close all that it does not know, and use their numbers again.
- If the recording takes longer than some seconds, the process dies without. If C code keeps the
interpreter's lock, so that no thread of Python's runs, the handler's own timer ends the process; a
thread that aborts with the lock does so at once.
- A second signal while the recording is written changes nothing. Forked children die of theirs at
once.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import glob
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from vramlens._core import load_core
from vramlens.capture.process.own_thread import OwnThread
from vramlens.capture.warn import harmless, say

_WITHIN_S = 10.0
"""The recording's time; launchers wait 30 s."""
_BEYOND = 1.2
"""After so many times that time the process ends without the interpreter's help."""


class Termination:
    """The watch for the signals of one process."""

    def __init__(
        self,
        write: Callable[[str, FrameType | None], None],
        folder: Callable[[], str],
        tell: Callable[[], None],
    ) -> None:
        """Prepares.

        Args:
            write: writes the recording, given the signal's name and where the main thread was.
            folder: the folder that it goes to.
            tell: prints what else is to be said at a program's end, in the time that is left.
        """
        self._write, self._folder, self._tell = write, folder, tell
        self._core: ctypes.CDLL | None = None

    @harmless("preparing SIGTERM")
    def arm(self) -> None:
        """From now on the signals leave a recording, where they would simply end the program."""
        if self._core is not None or sys.platform != "linux":
            return
        core = load_core()
        core.vl_termination_watch.argtypes = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32]
        core.vl_termination_die.argtypes = [ctypes.c_int32]
        holds_lock = ctypes.cast(ctypes.pythonapi.PyGILState_Check, ctypes.c_void_p)
        limit_ms = int(_BEYOND * _WITHIN_S * 1000)
        if not core.vl_termination_watch(limit_ms, holds_lock, faulthandler.is_enabled()):
            return
        self._core = core
        OwnThread(lambda: self._wait(core)).start()

    @harmless("giving SIGTERM back")
    def disarm(self) -> bool:
        """Has the signals do what they did before; what the program has set stays. Whether one
        had come already.
        """
        return self._core is not None and bool(self._core.vl_termination_leave())

    def stop(self) -> None:
        """The program ends by itself; if a signal has come, it dies of that, as it would have."""
        if self.disarm():
            time.sleep(2 * _BEYOND * _WITHIN_S)  # the thread, or the timer, ends the process

    @harmless("waiting for SIGTERM")
    def _wait(self, core: ctypes.CDLL) -> None:
        """On the thread: waits for a signal, has the recording written, and ends the process."""
        # A program may wait for them in a thread of its own.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP, signal.SIGABRT})
        number = core.vl_termination_wait()
        name = signal.Signals(number).name
        end = time.monotonic() + _WITHIN_S
        where = sys._current_frames().get(threading.main_thread().ident or 0)
        if _is_done_by(end, lambda: self._write(name, where)):
            _is_done_by(end, self._tell)
        else:
            say(f"{name}: no recording, because it would take longer than {_WITHIN_S:g} s")
            for partial in glob.glob(
                os.path.join(glob.escape(self._folder()), f".*.{os.getpid()}.partial")
            ):
                with contextlib.suppress(OSError):
                    os.unlink(partial)
        core.vl_termination_die(number)


def _is_done_by(end: float, work: Callable[[], None]) -> bool:
    """Whether some work was done by a moment; it has a thread of its own."""
    worker = OwnThread(work)
    try:
        worker.start()
        return worker.join(max(0.0, end - time.monotonic()))
    except RuntimeError:
        # Python 3.12 starts no thread while it waits for the program's own to end. The core's timer
        # bounds what this thread does.
        with contextlib.suppress(Exception):
            work()
        return True
