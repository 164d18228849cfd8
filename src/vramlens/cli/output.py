"""Output: standard output or a file, written whole or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
from typing import TextIO

from vramlens.errors import InputError, UsageError
from vramlens.whole_file import whole_file


class OutputError(InputError):
    """The answer could not be written."""


class Page(io.StringIO):
    """Text in memory that is meant for a stream: it claims to be what the stream is, a terminal or not."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._is_terminal = stream is not None and stream.isatty()
        self._encoding = getattr(stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        return self._is_terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding


def write_stdout(text: str) -> None:
    """Writes to standard output; a reader that has gone away (``| head``) is no error.

    Raises:
        OutputError: it is closed, or the disk behind it is full.
    """
    stream = sys.stdout
    if stream is None:
        raise OutputError("standard output is closed; use -o FILE")
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        _abandon(stream)
    except (OSError, ValueError) as error:  # ValueError: it was closed
        _abandon(stream)
        raise OutputError(f"standard output: {_reason(error)}") from None


def _abandon(stream: TextIO) -> None:
    """Lets what is still buffered go nowhere, so that the interpreter's own flush at exit does not fail again."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def write_file(path: str, text: str, *, source: str | None = None) -> None:
    """Writes a file in one step: it appears whole, or what was there before stays.

    Args:
        source: the input's path, which must not be overwritten.

    Raises:
        UsageError: the path is the input itself.
        OutputError: it cannot be written; nothing is left behind.
    """
    target = os.path.realpath(path)  # through a link to what it links to, as any other writing does
    try:
        mode: int | None = os.stat(target).st_mode
    except OSError:
        mode = None
    if mode is not None and source is not None and os.path.exists(source) and os.path.samefile(target, source):
        raise UsageError(f"-o {path}: is the input itself; name another file")
    data = text.encode("utf-8", "backslashreplace")
    try:
        if mode is not None and stat.S_ISDIR(mode):
            raise IsADirectoryError("is a directory; name a file in it")
        with whole_file(target) as file:
            file.write(data)
    except OSError as error:
        raise OutputError(f"{path}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return text[:1].lower() + text[1:] + "; nothing was written"
