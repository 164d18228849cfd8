"""Sockets of vramlens's own in the user's program, which may close every descriptor that it does
not know.

Daemons call ``os.closerange(3, ...)``, and the numbers are soon other files: whoever still reads,
writes or closes them takes what is the program's. So before each use it is checked that the number
still means the socket that was made.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator


class OwnSocket:
    """A socket that is let go of as soon as its descriptor is another file's."""

    def __init__(self, opened: socket.socket) -> None:
        opened.setblocking(False)
        # From now on nobody closes it but ``close``, not even the collector.
        self._descriptor = opened.detach()
        self._identity = _identity(self._descriptor)

    @property
    def descriptor(self) -> int | None:
        """Its number; None once it is closed, by us or by the program."""
        if self._identity is None or _identity(self._descriptor) != self._identity:
            return None
        return self._descriptor

    def accept(self) -> socket.socket | None:
        """The next who connects; None where nobody does, or it is no longer ours.

        Raises:
            OSError: somebody does, and there are too many open files.
        """
        with self._borrowed() as opened, contextlib.suppress(BlockingIOError):
            if opened is not None:
                return opened.accept()[0]
        return None

    def send(self, data: bytes) -> None:
        """Sends some bytes, if it is still ours and has room for them."""
        with self._borrowed() as opened, contextlib.suppress(OSError):
            if opened is not None:
                opened.send(data)

    def drain(self) -> None:
        """Takes all that waits."""
        with self._borrowed() as opened, contextlib.suppress(OSError):
            if opened is not None:
                opened.recv(4096)

    def close(self) -> None:
        """Closes it, if it is still ours."""
        descriptor, self._identity = self.descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    @contextlib.contextmanager
    def _borrowed(self) -> Iterator[socket.socket | None]:
        descriptor = self.descriptor
        opened = None if descriptor is None else socket.socket(fileno=descriptor)
        try:
            yield opened
        finally:
            if opened is not None:
                opened.detach()


def _identity(descriptor: int) -> tuple[int, int] | None:
    """The pair that tells one open file from every other; None where the number means none."""
    try:
        facts = os.fstat(descriptor)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino
