"""Input: a recording read from a file, with a bar on standard error where it takes a while; and
whether standard input was made for this command, so that no FILE need be named.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramlens.trace import Trace

PATIENCE_S = 10.0
"""How long a pipe that says nothing may keep a command waiting; one that ends, or speaks, does
at once.
"""

_SHELLS = ("sh", "ash", "bash", "dash", "ksh", "zsh", "fish")
_RUNNERS = ("timeout", "time", "sudo", "strace", "unbuffer")


def read_recording(path: str) -> Trace:
    """The recording in a file; ``-`` is standard input.

    Raises:
        InputError, UsageError: as for ``vramlens.load``.
    """
    from vramlens import api
    from vramlens.report.progress import reading_progress

    with reading_progress("reading") as progress:
        return api.load(path, progress=progress)


def has_input(patience_s: float = PATIENCE_S) -> bool:
    """Whether standard input is a file or a pipe that was made for this command. One that has ended
    without a byte is, too: whoever made it expects an answer about what should have come.

    What the parent process reads from, too, was not meant for this command: it may be the very
    script that runs it (``bash < ci.sh``), or a runner's pipe that never ends. A terminal and
    ``/dev/null`` hold nothing.
    """
    try:
        descriptor = sys.stdin.fileno()
        status = os.fstat(descriptor)
    except (AttributeError, OSError, ValueError):  # closed, or none at all
        return False
    if _is_the_parents(status):
        return False
    if stat.S_ISREG(status.st_mode):
        place = os.lseek(descriptor, 0, os.SEEK_CUR)
        return place < status.st_size or not status.st_size
    if stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode):
        return _speaks_or_ends(descriptor, patience_s)
    return False


def _is_the_parents(status: os.stat_result) -> bool:
    """Whether the parent's standard input is the same; taken for another where that cannot be
    told.
    """
    parent = f"/proc/{os.getppid()}"
    try:
        parents = os.stat(f"{parent}/fd/0")
        with open(f"{parent}/cmdline", "rb") as file:
            words = os.fsdecode(file.read()).split("\0")[:-1]
    except OSError:
        return False
    is_same = (parents.st_dev, parents.st_ino) == (status.st_dev, status.st_ino)
    return is_same and not _passes_its_input_on(words)


def _passes_its_input_on(words: list[str]) -> bool:
    """Whether a command reads no standard input itself: one that runs another, or a shell whose
    script is elsewhere.
    """
    name = os.path.basename(words[0]).lstrip("-") if words else ""
    if name in _SHELLS:
        return any(not word.startswith("-") or word.endswith("c") for word in words[1:])
    return name in _RUNNERS


def _speaks_or_ends(descriptor: int, patience_s: float) -> bool:
    """Whether a pipe has bytes to read, or its end, within the time; nothing is read."""
    try:
        import select

        return bool(select.select([descriptor], [], [], patience_s)[0])
    except (ImportError, OSError, ValueError):  # Windows has it for sockets only
        return False
