"""Recordings on demand: ``kill -USR2 PID`` and ``vramlens dump PID``.

A thread waits at a socket that only the same user can open; it also takes the samples. ``dump``
works when the program has replaced the signal's handler and when its main thread waits for the GPU;
a signal waits for the main thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from vramlens.capture.process.own_socket import OwnSocket
from vramlens.capture.process.own_thread import OwnThread
from vramlens.capture.triggers.dump_request import peer_of, read_line, socket_path
from vramlens.capture.triggers.user_folder import prepared_folder
from vramlens.capture.warn import harmless

_ASKS_WITHIN_S = 5.0
_ENDS_WITHIN_S = 2.0
_TICK_S = 1.0
# Python's own, also where gevent puts others in their place later.
_poll: Any = getattr(select, "poll", None)
_sleep = time.sleep


class Dump(Protocol):
    """Writes a recording."""

    def __call__(self, trigger: str, path: str | None, *, redacted: bool) -> dict[str, Any]:
        """The answer to whoever asked; without a path it goes where the program's own go."""


class DumpServer:
    """The thread, the socket and the signal of one process."""

    def __init__(self, dump: Dump, tick: Callable[[], None]) -> None:
        """Prepares.

        Args:
            dump: writes a recording; its answer goes to whoever asked.
            tick: called once a second or so, on the thread.
        """
        self._dump, self._tick = dump, tick
        self._pid = os.getpid()
        self._listener: OwnSocket | None = None
        self._path = ""
        self._wake_ends: tuple[OwnSocket, OwnSocket] | None = None
        self._thread: OwnThread | None = None
        self._is_wanted = self._is_over = False

    @harmless("preparing SIGUSR2")
    def handle_signal(self) -> None:
        """Handles the signal from now on, where the program has no handler: unhandled it would
        end the program.
        """
        number = getattr(signal, "SIGUSR2", None)
        if number is None or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, self._signalled)

    def start(self) -> None:
        """Begins to listen: the thread starts."""
        ours, threads = socket.socketpair()
        self._wake_ends = OwnSocket(ours), OwnSocket(threads)
        self._listen()
        self._thread = OwnThread(self._run)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and takes the socket away."""
        if self._pid != os.getpid():
            return
        self._is_over = True
        self._wake()
        if self._thread is not None and not self._thread.is_current:
            self._thread.join(_ENDS_WITHIN_S)
        if self._listener is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self.close()

    def close(self) -> None:
        """Closes what is open; a forked child does, or whoever asks its parent would wait for
        the child.
        """
        for end in (self._listener, *(self._wake_ends or ())):
            if end is not None:
                end.close()
        self._listener = self._wake_ends = None

    def _signalled(self, _number: int, _frame: Any) -> None:
        # The program may be anywhere, inside of its own locks too: the thread does the work.
        if os.getpid() != self._pid:
            return
        if self._thread is None:
            os.write(2, b"vramlens: no recording: the program has not used a GPU yet\n")
        else:
            self._is_wanted = True
            self._wake()

    def _wake(self) -> None:
        if self._wake_ends is not None:
            self._wake_ends[0].send(b"x")

    @harmless("listening for 'vramlens dump'")
    def _listen(self) -> None:
        if not hasattr(socket, "AF_UNIX"):
            return
        self._path = socket_path(prepared_folder(), self._pid)
        with contextlib.suppress(OSError):
            os.unlink(self._path)  # of an earlier process with our number
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self._path)
        listener.listen(4)
        self._listener = OwnSocket(listener)

    def _run(self) -> None:
        while not self._is_over:
            self._wait()
            if self._wake_ends is not None:
                self._wake_ends[1].drain()
            if self._is_wanted and not self._is_over:
                self._is_wanted = False
                self._dump("signal", None, redacted=False)
            self._answer()
            if not self._is_over:
                self._tick()

    def _wait(self) -> None:
        """Until somebody asks, or a second is over."""
        ends = [self._listener, None if self._wake_ends is None else self._wake_ends[1]]
        descriptors = [
            end.descriptor for end in ends if end is not None and end.descriptor is not None
        ]
        # The program has closed them: signals are seen once a second.
        if _poll is None or not descriptors:
            _sleep(_TICK_S)
            return
        waiting = _poll()
        for descriptor in descriptors:
            waiting.register(descriptor, select.POLLIN)
        waiting.poll(_TICK_S * 1000)

    @harmless("answering 'vramlens dump'")
    def _answer(self) -> None:
        connection = self._next_caller()
        if connection is None:
            return
        with connection:
            peer = peer_of(connection)
            if peer is not None and peer.uid not in (0, os.getuid(), os.geteuid()):
                return
            request = json.loads(read_line(connection, time.monotonic() + _ASKS_WITHIN_S))
            path, is_redacted = request.get("path"), request.get("redact") is True
            connection.settimeout(_ASKS_WITHIN_S)
            path = path if isinstance(path, str) else None
            answer = self._dump("signal", path, redacted=is_redacted)
            connection.sendall(json.dumps(answer).encode() + b"\n")

    def _next_caller(self) -> socket.socket | None:
        try:
            return None if self._listener is None else self._listener.accept()
        except OSError:  # who calls waits, and so do we: the descriptor stays readable
            _sleep(_TICK_S)
            return None
