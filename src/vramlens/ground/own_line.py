"""vramlens's own line among a program's: marked, and broken at words where a terminal is narrower."""

from __future__ import annotations

import contextlib
import os
import textwrap
from typing import TextIO


def own_line(message: str, stream: TextIO) -> str:
    """``vramlens: …`` for a stream; one line unless that is a narrower terminal."""
    line = f"vramlens: {message}"
    width = terminal_width(stream)
    if width is None or len(line) <= width:
        return line
    return "\n".join(textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False))


def terminal_width(stream: TextIO) -> int | None:
    """The columns of the terminal that a stream is; None for a file or a pipe, whose lines stay
    whole.
    """
    with contextlib.suppress(Exception):  # a program may have put anything there
        if not stream.isatty():
            return None
        columns = os.environ.get("COLUMNS", "")
        if columns.isascii() and columns.isdigit() and int(columns[:5]) > 0:
            return int(columns[:5])
        return os.get_terminal_size(stream.fileno()).columns or None
    return None
