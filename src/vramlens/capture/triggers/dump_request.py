"""Asking a running program for a recording, and believing nobody else's answer.

Root asks programs of every user, in folders which those users made: whoever is at the other end,
how long it takes and what it says is checked before any of it is shown.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from vramlens.capture.process.process_state import status_of, why_not_running
from vramlens.capture.triggers.user_folder import all_folders, is_trusted
from vramlens.errors import InputError

_ANSWER_WITHIN_S = 300.0
_CONNECTS_WITHIN_S = 5.0
_LONGEST_LINE = 1 << 16
_LONGEST_TEXT = 4096
_CREDENTIALS = struct.Struct("3i")  # struct ucred of socket.h: pid, uid, gid
REDACTED = "redacted"
"""In an answer: what was asked for was left out. An older vramlens does not say so."""
_TEXTS = ("path", "error", REDACTED)


class Peer(NamedTuple):
    """Whose process is at the other end of a Unix socket."""

    pid: int
    uid: int


def ask(pid: int, request: dict[str, Any]) -> dict[str, str]:
    """Asks a program that runs under vramlens; its answer: ``{"path": …}``, or ``{"error": why
    not}``.

    Raises:
        InputError: there is no such program, or it does not answer as one would.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise InputError("this system has no Unix sockets, so a running program cannot be reached")
    if not _is_there(pid):
        raise InputError(f"there is no process {pid}: it may have ended (ps lists them)")
    stopped = why_not_running(pid)
    if stopped:
        raise InputError(stopped)
    deadline = time.monotonic() + _ANSWER_WITHIN_S
    with _connected(pid) as client:
        try:
            client.sendall(json.dumps(request).encode() + b"\n")
            line = read_line(client, deadline)
        except OSError:
            raise InputError(
                f"process {pid} did not answer: it may have ended or be stuck"
            ) from None
    answer = _checked(line)
    if not answer:
        raise InputError(f"process {pid} gave an invalid answer")
    return answer


def socket_path(folder: str, pid: int) -> str:
    """Where a program listens."""
    return os.path.join(folder, f"{pid}.sock")


def peer_of(connection: socket.socket) -> Peer | None:
    """The process that connected, or that began to listen; None where the system does not say."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    with contextlib.suppress(OSError, struct.error):
        credentials = connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(credentials)
        return Peer(pid, uid)
    return None


def read_line(connection: socket.socket, deadline: float) -> bytes:
    """Everything up to the first newline, or to the end.

    Args:
        deadline: on ``time.monotonic``'s clock, for the whole line: bytes that trickle in do not
            move it.

    Raises:
        OSError: it is late, or too long.
    """
    line = bytearray()
    while b"\n" not in line:
        seconds_left = deadline - time.monotonic()
        if seconds_left <= 0 or len(line) >= _LONGEST_LINE:
            raise TimeoutError
        connection.settimeout(seconds_left)
        piece = connection.recv(_LONGEST_LINE)
        if not piece:
            break
        line += piece
    return bytes(line.partition(b"\n")[0])


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's
        return True
    return True


def _connected(pid: int) -> socket.socket:
    for folder in filter(is_trusted, _folders(pid)):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(_CONNECTS_WITHIN_S)
        try:
            client.connect(socket_path(folder, pid))
        except OSError:  # none there, or of a program that has ended
            client.close()
            continue
        if _is_of(pid, client):
            return client
        client.close()
    raise InputError(
        f"process {pid} has nothing to write: it does not run under vramlens here, or it has not "
        f"used a GPU yet. Look into it with 'vramlens attach {pid}', or start it with 'vramlens"
        " run'"
    )


def _folders(pid: int) -> Iterator[str]:
    """Where the program may listen; for root, in the folders of the program's own user only."""
    owner = owner_of(pid)
    for folder in all_folders():
        if os.getuid() != 0 or owner is None or os.path.basename(folder) == f"vramlens-{owner}":
            yield folder


def _is_of(pid: int, client: socket.socket) -> bool:
    """True where the asked program listens there, or one of this very user's: nobody else made that
    socket.
    """
    peer = peer_of(client)
    if peer is None:  # no such question here: the folder was this user's own
        return os.getuid() != 0
    return peer.uid == os.getuid() or (os.getuid() == 0 and peer == (pid, owner_of(pid)))


def owner_of(pid: int) -> int | None:
    """The user a process runs as (its real user id); None where there is none, or no ``/proc``."""
    try:
        return int(status_of(pid)["Uid"].split()[0])
    except (OSError, ValueError, LookupError):
        return None


def _checked(line: bytes) -> dict[str, str]:
    """The texts of an answer; nothing where it is not one."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(answer, dict):
        return {}
    texts = {name: answer[name] for name in _TEXTS if name in answer}
    if any(
        not isinstance(text, str) or not 0 < len(text) <= _LONGEST_TEXT for text in texts.values()
    ):
        return {}
    return texts
