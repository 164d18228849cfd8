"""SIGTERM: a recording before the process dies of it, as it would have.

When one rank fails, its launcher sends SIGTERM to the others, which wait in a collective, in C++, where no handler
written in Python ever runs. So the handler is the native core's (native/termination.cpp): it wakes a thread that waits
at a pipe, writes the recording and lets the process die of SIGTERM.

- The program sees nothing of it: ``signal.getsignal`` says SIG_DFL, and whatever handler the program sets takes the
  place of this one, for good. Where SIGTERM is handled or ignored already, nothing is done.
- If the recording takes longer than some seconds, the process dies without. If C code keeps the interpreter's lock, so
  that no thread of Python's runs, the handler's own timer ends the process.
- A second SIGTERM while the recording is written changes nothing. Forked children die of SIGTERM at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from vramlens._core import load_core
from vramlens.capture.warn import harmless, say

_WITHIN_S = 10.0
"""The recording's time; launchers wait 30 s."""
_BEYOND = 1.2
"""After so many times that time the process ends without the interpreter's help."""


class Termination:
    """The watch for SIGTERM of one process."""

    def __init__(self, write: Callable[[FrameType | None], None], folder: Callable[[], str]) -> None:
        """Prepares.

        Args:
            write: writes the recording, given where the main thread was.
            folder: the folder that it goes to.
        """
        self._write, self._folder = write, folder
        self._core: ctypes.CDLL | None = None

    @harmless("preparing SIGTERM")
    def arm(self) -> None:
        """From now on SIGTERM leaves a recording, where it would simply end the program."""
        if self._core is not None or sys.platform != "linux":
            return
        core = load_core()
        core.vl_termination_watch.argtypes = [ctypes.c_int32, ctypes.c_int64]
        reading, writing = os.pipe()
        if not core.vl_termination_watch(writing, int(_BEYOND * _WITHIN_S * 1000)):
            os.close(reading)
            os.close(writing)
            return
        self._core = core
        threading.Thread(target=self._wait, args=(core, reading), name="vramlens", daemon=True).start()

    @harmless("giving SIGTERM back")
    def disarm(self) -> bool:
        """Has SIGTERM do what it did before; what the program has set stays. Whether it had come already."""
        return self._core is not None and bool(self._core.vl_termination_leave())

    def stop(self) -> None:
        """The program ends by itself; if SIGTERM has come, it dies of that, as it would have."""
        if self.disarm():
            time.sleep(2 * _BEYOND * _WITHIN_S)  # the thread, or the timer, ends the process

    @harmless("waiting for SIGTERM")
    def _wait(self, core: ctypes.CDLL, reading: int) -> None:
        """On the thread: waits for the signal, has the recording written, and ends the process."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # a program may wait for it in a thread of its own
        os.read(reading, 1)
        end = time.monotonic() + _WITHIN_S
        where = sys._current_frames().get(threading.main_thread().ident or 0)
        writer = threading.Thread(target=self._write, args=(where,), name="vramlens", daemon=True)
        with contextlib.suppress(RuntimeError):  # the interpreter is shutting down: no new threads
            writer.start()
            writer.join(max(0.0, end - time.monotonic()))
        if writer.is_alive():
            say(f"SIGTERM: no recording, it takes longer than {_WITHIN_S:g} s")
            for left in glob.glob(os.path.join(glob.escape(self._folder()), f".*.{os.getpid()}.partial")):
                with contextlib.suppress(OSError):
                    os.unlink(left)
        core.vl_termination_die()
