"""What a verb says beside its answer: on standard error, one line, broken at words where a
terminal is narrower.
"""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
from typing import TextIO

from vramlens.foreign_text import one_line


def say(message: str) -> None:
    """Writes one line on standard error, whatever the message holds; where nobody listens,
    nothing happens.
    """
    stream = sys.stderr
    if stream is None:
        return
    line = f"vramlens: {one_line(' '.join(message.split(chr(10))))}"
    width = _width(stream)
    if width is not None and len(line) > width:
        line = "\n".join(textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False))
    encoding = getattr(stream, "encoding", None) or "utf-8"
    with contextlib.suppress(OSError, ValueError):
        print(line.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def _width(stream: TextIO) -> int | None:
    """The columns of the terminal that a stream is; None for a file or a pipe, whose lines stay
    whole.
    """
    with contextlib.suppress(OSError, ValueError):
        if not stream.isatty():
            return None
        columns = os.environ.get("COLUMNS", "")
        if columns.isascii() and columns.isdigit() and int(columns[:5]) > 0:
            return int(columns[:5])
        return os.get_terminal_size(stream.fileno()).columns or None
    return None
