"""Recordings on demand: ``kill -USR2 PID`` and ``vramlens dump PID``.

A thread waits at a socket that only the same user can open; it also takes the samples. ``dump`` works when the program
has replaced the signal's handler and when its main thread waits for the GPU; a signal waits for the main thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, cast

from vramlens.capture.dump_request import peer_of, read_line, socket_path
from vramlens.capture.user_folder import prepared_folder
from vramlens.capture.warn import harmless

_ASKS_WITHIN_S = 5.0
_ENDS_WITHIN_S = 2.0
_TICK_S = 1.0


class Control:
    """The thread, the socket and the signal of one process."""

    def __init__(self, dump: Callable[[str, str | None], dict[str, Any]], tick: Callable[[], None]) -> None:
        """Prepares.

        Args:
            dump: writes a recording, given the trigger and a path or None; its answer goes to whoever asked.
            tick: called once a second or so, on the thread.
        """
        self._dump, self._tick = dump, tick
        self._pid = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._path = ""
        self._wake_end: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._is_over = False

    @harmless("preparing SIGUSR2")
    def handle_signal(self) -> None:
        """Handles the signal from now on, where the program has no handler: unhandled it would end the program."""
        number = getattr(signal, "SIGUSR2", None)
        if number is None or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, self._signalled)

    def start(self) -> None:
        """Begins to listen: the thread starts."""
        self._wake_end, waiting_end = socket.socketpair()
        waiting_end.setblocking(False)
        self._selector.register(waiting_end, selectors.EVENT_READ)
        self._listen()
        self._thread = threading.Thread(target=self._run, name="vramlens", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and takes the socket away."""
        if self._pid != os.getpid():
            return
        self._is_over = True
        self._wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_ENDS_WITHIN_S)
        if self._listener is not None:
            self._listener.close()
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _signalled(self, _number: int, _frame: Any) -> None:
        # The program may be anywhere, inside of its own locks too: the thread does the work.
        if os.getpid() != self._pid:
            return
        if self._thread is None:
            os.write(2, b"vramlens: no recording: the program has not used a GPU yet\n")
        else:
            self._wake()

    def _wake(self) -> None:
        if self._wake_end is not None:
            with contextlib.suppress(OSError):
                self._wake_end.send(b"x")

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
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._listener = listener

    def _run(self) -> None:
        while not self._is_over:
            for key, _ in self._selector.select(_TICK_S):
                if key.fileobj is self._listener:
                    self._answer()
                elif _drained(cast(socket.socket, key.fileobj)) and not self._is_over:
                    self._dump("signal", None)
            if not self._is_over:
                self._tick()

    @harmless("answering 'vramlens dump'")
    def _answer(self) -> None:
        if self._listener is None:
            return
        connection, _ = self._listener.accept()
        with connection:
            peer = peer_of(connection)
            if peer is not None and peer.uid not in (0, os.getuid(), os.geteuid()):
                return
            path = json.loads(read_line(connection, time.monotonic() + _ASKS_WITHIN_S)).get("path")
            connection.settimeout(_ASKS_WITHIN_S)
            answer = self._dump("signal", path if isinstance(path, str) else None)
            connection.sendall(json.dumps(answer).encode() + b"\n")


def _drained(end: socket.socket) -> bool:
    """Takes all that waits at an end that does not block; whether there was anything."""
    with contextlib.suppress(OSError):
        return bool(end.recv(4096))
    return False
