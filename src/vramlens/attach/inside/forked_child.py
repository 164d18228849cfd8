"""A forked child of the process, seen from the process: what it writes, and its end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable

from vramlens.capture.process.process_state import state_of

_LOOKS_EVERY_S = 0.1
_ASLEEP_LOOKS = 15
_PIECE_BYTES = 1 << 16
_ASLEEP = "S"
_ENDED = ("Z", "X", "")


class ForkedChild:
    """One child, and the pipe that it writes to.

    The program may wait for any child and so take its end; the system may then give its number to
    another process. A descriptor of the process stays what it is.
    """

    def __init__(self, pid: int, pipe: int) -> None:
        self._pid, self._pipe = pid, pipe
        self._descriptor = _process_descriptor(pid)

    def received(self, seconds: float, is_wanted: Callable[[], bool]) -> bytes | None:
        """Everything that it writes until it ends; None where it hangs, the time is over, or
        nobody wants it any more.
        """
        deadline = time.monotonic() + seconds
        pieces: list[bytes] = []
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        asleep = 0
        has_ended = False
        while is_wanted() and time.monotonic() <= deadline:
            if poll.poll(0 if has_ended else _LOOKS_EVERY_S * 1000):
                piece = os.read(self._pipe, _PIECE_BYTES)
                if not piece:
                    return b"".join(pieces)
                pieces.append(piece)
                continue
            if has_ended:  # another child of the program has the pipe, too
                return b"".join(pieces)
            state = state_of(self._pid)
            has_ended = state in _ENDED
            asleep = asleep + 1 if state == _ASLEEP else 0
            if asleep >= _ASLEEP_LOOKS:
                return None
        return None

    def end(self) -> None:
        """Ends it; nothing is left of it."""
        os.close(self._pipe)
        if self._descriptor is None:
            self._end_by_number()
            return
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        with contextlib.suppress(OSError):  # the program waits for any child
            os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED)
        os.close(self._descriptor)

    def _end_by_number(self) -> None:
        """Where the system has no descriptors of processes. What is not a child of ours any more is
        left alone.
        """
        with contextlib.suppress(OSError):
            pid, _ = os.waitpid(self._pid, os.WNOHANG)
            if pid == 0:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)


def _process_descriptor(pid: int) -> int | None:
    """The system's descriptor of a process; None where it has none: before Linux 5.4."""
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return None
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
