"""The words between ``vramlens attach`` and the process: JSON objects, one a line.

The process is asked once; it answers with any number of ``progress`` and one ``answer`` or
``error``. Runs on both sides: standard library only.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

LONGEST_BYTES = 64 << 20
_PIECE_BYTES = 1 << 16


class NoAnswer(Exception):
    """Nobody is at the other end any more, or nothing came in time."""


class Connection:
    """One end of a connection that carries JSON objects."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._waiting = bytearray()

    def send(self, message: dict[str, Any]) -> None:
        """Sends an object.

        Raises:
            NoAnswer: nobody takes it.
        """
        try:
            self._socket.settimeout(30.0)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise NoAnswer(str(error)) from None

    def receive(self, seconds: float) -> dict[str, Any]:
        """The next object.

        Raises:
            NoAnswer: the other end is closed; what came is too long or no object.
            TimeoutError: nothing whole came in time; it may still come.
        """
        deadline = time.monotonic() + seconds
        while b"\n" not in self._waiting:
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                raise TimeoutError
            self._take_piece(seconds_left)
        line, _, after = bytes(self._waiting).partition(b"\n")
        self._waiting = bytearray(after)
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise NoAnswer("the answer is invalid")
        return message

    def wait_for_end(self, seconds: float) -> None:
        """Returns when the other end has closed, or after that time; what still comes is dropped."""
        deadline = time.monotonic() + seconds
        with suppress(NoAnswer, TimeoutError):
            while True:
                self.receive(deadline - time.monotonic())

    def is_open(self) -> bool:
        """True while the other end has not closed; takes no time."""
        try:
            self._take_piece(0.0)
        except TimeoutError:
            return True
        except NoAnswer:
            return False
        return True

    def _take_piece(self, seconds: float) -> None:
        try:
            self._socket.settimeout(seconds)
            piece = self._socket.recv(_PIECE_BYTES)
        except (TimeoutError, BlockingIOError):
            raise TimeoutError from None
        except OSError as error:
            raise NoAnswer(str(error)) from None
        if not piece:
            raise NoAnswer("the connection is closed")
        self._waiting += piece
        if len(self._waiting) > LONGEST_BYTES:
            raise NoAnswer("the answer is too long")
