"""SIGTERM: a recording before the process dies of it, as it would have.

When one rank fails, its launcher sends SIGTERM to the others, which wait in a collective, in C++, where no handler
written in Python ever runs. So the handler is ``faulthandler``'s, which is C and writes where the program is to a
socket; a thread that waits there writes the recording and lets the process die of SIGTERM.

- The program sees nothing of it: ``signal.getsignal`` says SIG_DFL, and whatever handler the program sets takes the
  place of this one, for good. Where SIGTERM is handled or ignored already, nothing is done.
- If the recording takes longer than some seconds, the process dies without. If C code keeps the interpreter's lock, so
  that no thread of Python's runs, SIGTERM is sent again all the same: by glibc, whose asynchronous input and output
  works without the lock. One request waits for the first byte of what the handler writes; the next, to the same
  descriptor, waits for room that never comes, until its timeout; its end is told by a signal. The handler is good for
  one signal only, so that this one is deadly.
- A second SIGTERM while the recording is written changes nothing. Forked children die of SIGTERM at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import glob
import os
import platform
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from vramlens.capture.warn import harmless, say

_WITHIN_S = 10.0
"""The recording's time; launchers wait 30 s."""
_ROUND = 0.6
"""Of that time what glibc waits, twice before it sends SIGTERM, and once more before it sends it again: that one is
deadly, too, if the interpreter's lock is lost while the recording is written."""
_TICK_S = 0.1
# struct sigaction and struct aiocb of glibc on 64-bit machines (bits/sigaction.h, bits/types/sigevent_t.h, aio.h).
_MACHINES = ("x86_64", "aarch64")
_FLAGS_AT = 136
_ONCE = 0x80000000  # SA_RESETHAND
_AIOCB = struct.Struct("=iii4xQQQii")
_AIOCB_BYTES = 512
_BY_SIGNAL, _BY_NOTHING = 0, 1


class Termination:
    """The watch for SIGTERM of one process."""

    def __init__(self, write: Callable[[str], None], folder: Callable[[], str]) -> None:
        """Prepares.

        Args:
            write: writes the recording, given where the program was, in faulthandler's words.
            folder: the folder that it goes to.
        """
        self._write, self._folder = write, folder
        self._pid = os.getpid()
        self._libc: Any = None
        self._ours = 0
        self._heard: socket.socket | None = None
        self._told: socket.socket | None = None

    @harmless("preparing SIGTERM")
    def arm(self) -> None:
        """From now on SIGTERM leaves a recording, where it would simply end the program."""
        if self._heard is not None or not _is_possible():
            return
        self._libc = _libc()
        if self._libc is None or self._handler() != 0 or _main_thread_blocks():
            return
        self._heard, self._told = socket.socketpair()
        self._told.setblocking(False)
        if not self._prepare_the_end(self._heard):
            return
        threading.Thread(target=self._wait, name="vramlens", daemon=True).start()
        register = faulthandler.register
        register(signal.SIGTERM, self._told, all_threads=False)
        self._ours = self._handler()
        self._once()

        @functools.wraps(register)
        def without_ours(signum: int, *args: Any, **kwargs: Any) -> Any:
            if signum == signal.SIGTERM:
                self.disarm()
            return register(signum, *args, **kwargs)

        faulthandler.register = without_ours

    @harmless("giving SIGTERM back")
    def disarm(self) -> None:
        """From now on SIGTERM does what it did before; what the program has set stays. In a forked child too."""
        if not self._ours:
            return
        found = self._sigaction()
        is_ours = struct.unpack_from("Q", found)[0] == self._ours
        self._ours = 0
        faulthandler.unregister(signal.SIGTERM)
        if not is_ours:
            self._libc.sigaction(signal.SIGTERM, found, None)

    def stop(self) -> None:
        """The program ends by itself; if SIGTERM has come, it dies of that, as it would have."""
        if not self._has_come():
            self.disarm()
        if self._has_come():
            time.sleep(4 * _WITHIN_S)  # the thread ends the process

    def _has_come(self) -> bool:
        if self._heard is None or self._pid != os.getpid():
            return False
        try:
            return bool(self._heard.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    @harmless("waiting for SIGTERM")
    def _wait(self) -> None:
        """On the thread: waits for the signal, has the recording written, and ends the process."""
        if self._heard is None:
            return
        # What came is looked at and not taken: glibc waits for its first byte.
        while not self._heard.recv(1, socket.MSG_PEEK):
            time.sleep(_TICK_S)
        end = time.monotonic() + _WITHIN_S
        if self._ours:
            self._once()  # for a second one
        time.sleep(_TICK_S)  # the handler writes piece by piece
        dump = self._heard.recv(1 << 16, socket.MSG_PEEK).decode("utf-8", "replace")
        writer = threading.Thread(target=self._write, args=(dump,), name="vramlens", daemon=True)
        with contextlib.suppress(RuntimeError):  # the interpreter is shutting down: no new threads
            writer.start()
            writer.join(max(0.0, end - time.monotonic()))
        if writer.is_alive():
            say(f"SIGTERM: no recording, it takes longer than {_WITHIN_S:g} s")
            for left in glob.glob(os.path.join(glob.escape(self._folder()), f".*.{self._pid}.partial")):
                with contextlib.suppress(OSError):
                    os.unlink(left)
        self._libc.signal(signal.SIGTERM, None)
        os.kill(self._pid, signal.SIGTERM)

    def _prepare_the_end(self, heard: socket.socket) -> bool:
        """Has glibc send SIGTERM some seconds after the first byte arrives here; whether it will."""
        heard.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least there is
        seconds = _ROUND * _WITHIN_S
        heard.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))
        heard.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                heard.send(bytes(256))
        heard.setblocking(True)
        self._libc.calloc.restype = ctypes.c_void_p
        requests = (("aio_read", 0), ("aio_write", 0), ("aio_write", signal.SIGTERM), ("aio_write", signal.SIGTERM))
        for name, number in requests:
            # Never given back: it must outlive the interpreter.
            block = self._libc.calloc(ctypes.c_size_t(1), ctypes.c_size_t(_AIOCB_BYTES))
            if not block:
                return False
            told = _BY_SIGNAL if number else _BY_NOTHING
            content = _AIOCB.pack(heard.fileno(), 0, 0, block + _AIOCB_BYTES // 2, 1, 0, number, told)
            ctypes.memmove(block, content, len(content))
            if getattr(self._libc, name)(ctypes.c_void_p(block)) != 0:
                return False
        return True

    def _sigaction(self) -> Any:
        found = ctypes.create_string_buffer(256)
        self._libc.sigaction(signal.SIGTERM, None, found)
        return found

    def _handler(self) -> int:
        """The handler that the system knows: 0 is the default."""
        return int(struct.unpack_from("Q", self._sigaction())[0])

    def _once(self) -> None:
        """Makes the handler good for one more signal."""
        action = self._sigaction()
        handler, flags = struct.unpack_from("Q", action)[0], struct.unpack_from("I", action, _FLAGS_AT)[0]
        if handler not in (0, self._ours):
            return  # the program's
        struct.pack_into("Q", action, 0, self._ours)
        struct.pack_into("I", action, _FLAGS_AT, flags | _ONCE)
        self._libc.sigaction(signal.SIGTERM, action, None)


def _is_possible() -> bool:
    return (
        hasattr(faulthandler, "register")
        and platform.system() == "Linux"
        and platform.libc_ver()[0] == "glibc"
        and platform.machine() in _MACHINES
        and struct.calcsize("P") == 8
    )


def _libc() -> Any:
    """glibc with its asynchronous input and output; None without that."""
    for name in (None, "librt.so.1"):  # a library of its own before glibc 2.34
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(name)
            if hasattr(library, "aio_read"):
                return library
    return None


def _main_thread_blocks() -> bool:
    """Whether SIGTERM would come to another thread than the main one: somebody waits for it there."""
    with open(f"/proc/self/task/{os.getpid()}/status", encoding="utf-8") as file:
        blocked = next((line.split()[1] for line in file if line.startswith("SigBlk:")), "0")
    return bool(int(blocked, 16) >> (signal.SIGTERM - 1) & 1)
