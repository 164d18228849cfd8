"""Recordings on demand: ``kill -USR2 PID`` and ``vramlens dump PID``.

A thread waits at a socket that only the same user can open; it also takes the samples. ``dump`` works when the program
has replaced the signal's handler and when its main thread waits for the GPU; a signal waits for the main thread.
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
from typing import Any

from vramlens.capture.own_socket import OwnSocket
from vramlens.capture.own_thread import OwnThread
from vramlens.capture.user_folder import all_folders, is_trusted, prepared_folder
from vramlens.capture.warn import harmless
from vramlens.errors import InputError

_ANSWER_WITHIN_S = 300.0
_ASKS_WITHIN_S = 5.0
_ENDS_WITHIN_S = 2.0
_TICK_S = 1.0
_LONGEST_LINE = 1 << 16
# Python's own, also where gevent puts others in their place later.
_poll: Any = getattr(select, "poll", None)
_sleep = time.sleep


def ask(pid: int, request: dict[str, Any]) -> dict[str, Any]:
    """Asks a program that runs under vramlens, and returns its answer.

    Raises:
        InputError: there is no such program, or it does not answer.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise InputError("this system has no Unix sockets: a running program cannot be asked")
    with _connected(pid) as client:
        try:
            client.sendall(json.dumps(request).encode() + b"\n")
            with client.makefile("rb") as answers:
                answer = json.loads(answers.readline(_LONGEST_LINE))
        except (OSError, ValueError):
            raise InputError(f"process {pid} did not answer: it may have ended or be stuck") from None
    if not isinstance(answer, dict):
        raise InputError(f"process {pid} gave no answer that makes sense")
    return answer


def _connected(pid: int) -> socket.socket:
    # Of one that has ended, a child that it forked may have the socket still, and nobody answers there.
    folders = all_folders() if _is_alive(pid) else ()
    for folder in filter(is_trusted, folders):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(_ANSWER_WITHIN_S)
        try:
            client.connect(_socket_path(folder, pid))
            return client
        except OSError:  # none there, or of a program that has ended
            client.close()
    raise InputError(
        f"process {pid} does not run under vramlens here, or has not used a GPU yet: start it with "
        "'vramlens run', or call vramlens.install() in it"
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def _socket_path(folder: str, pid: int) -> str:
    return os.path.join(folder, f"{pid}.sock")


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
        self._listener: OwnSocket | None = None
        self._path = ""
        self._wake_ends: tuple[OwnSocket, OwnSocket] | None = None
        self._thread: OwnThread | None = None
        self._is_wanted = self._is_over = False

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
        """Closes what is open; a forked child does, or whoever asks its parent would wait for the child."""
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
        self._path = _socket_path(prepared_folder(), self._pid)
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
                self._dump("signal", None)
            self._answer()
            if not self._is_over:
                self._tick()

    def _wait(self) -> None:
        """Until somebody asks, or a second is over."""
        ends = [self._listener, None if self._wake_ends is None else self._wake_ends[1]]
        descriptors = [end.descriptor for end in ends if end is not None and end.descriptor is not None]
        if _poll is None or not descriptors:  # the program has closed them: signals are seen once a second
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
            connection.settimeout(_ASKS_WITHIN_S)
            with connection.makefile("rb") as lines:
                path = json.loads(lines.readline(_LONGEST_LINE)).get("path")
            answer = self._dump("signal", path if isinstance(path, str) else None)
            connection.sendall(json.dumps(answer).encode() + b"\n")

    def _next_caller(self) -> socket.socket | None:
        try:
            return None if self._listener is None else self._listener.accept()
        except OSError:  # who calls waits, and so do we: the descriptor stays readable
            _sleep(_TICK_S)
            return None
