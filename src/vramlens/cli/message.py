"""What a verb says beside its answer: on standard error, one line, broken at words where a
terminal is narrower.
"""

from __future__ import annotations

import contextlib
import sys

from vramlens.foreign_text import one_line
from vramlens.ground.own_line import own_line


def is_watched() -> bool:
    """Whether a person reads standard error."""
    return sys.stderr is not None and sys.stderr.isatty()


def say(message: str) -> None:
    """Writes one line on standard error, whatever the message holds; where nobody listens,
    nothing happens.
    """
    stream = sys.stderr
    if stream is None:
        return
    line = own_line(one_line(" ".join(message.split("\n"))), stream)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    with contextlib.suppress(OSError, ValueError):
        print(line.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
