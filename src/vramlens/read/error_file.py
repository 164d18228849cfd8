"""Reading an error file that torchrun's ranks write (TORCHELASTIC_ERROR_FILE, or its log folder's
error.json).

The form is that of torch/distributed/elastic/multiprocessing/errors/error_handler.py.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

from vramlens.errors import NotARecording
from vramlens.read.opened_source import open_source, whole_of
from vramlens.read.values import as_dict
from vramlens.trace.rank_error import RankError, tells_of_another
from vramlens.trace.stacks import Frame

_LARGEST_BYTES = 4 << 20
_LONGEST_MESSAGE = 500
_MOST_FRAMES = 200
_FRAME = re.compile(
    r'^\s*File "([^"\n]{1,1000})", line (\d{1,9}), in ([^\n]{1,500})$', re.MULTILINE
)


def is_error_file(head: bytes) -> bool:
    """Whether a file that begins so may be an error file."""
    return (
        head.lstrip()[:1] == b"{"
        and b'"message"' in head
        and (b'"extraInfo"' in head or b'"errorCode"' in head)
    )


def read_error_file(path: str | os.PathLike[str]) -> RankError:
    """The error file of a rank.

    Raises:
        InputError: the file cannot be read.
        UnsafeInput: it is larger than any error.
        NotARecording: it is something else.
    """
    with open_source(path) as source:
        data = whole_of(source, _LARGEST_BYTES, "error file")
    entry = _parsed(data)
    if isinstance(entry.get("message"), dict):  # the text and its details lie one level deeper
        entry = entry["message"]
    text, details = entry.get("message"), as_dict(entry.get("extraInfo"))
    if not isinstance(text, str):
        raise NotARecording(f"{source.name}: not a torchrun error file: it has no message")
    message = " ".join(text.split())[:_LONGEST_MESSAGE]
    return RankError(
        source=source.name,
        message=message,
        time_s=_seconds(details.get("timestamp")),
        frames=_frames(details.get("py_callstack")),
        follows=tells_of_another(message),
    )


def _parsed(data: bytes) -> dict[Any, Any]:
    try:
        return as_dict(json.loads(data))
    except (ValueError, RecursionError):
        return {}


def _seconds(time: object) -> int | None:
    is_number = isinstance(time, (str, int)) and re.fullmatch(r"\d{1,12}", str(time))
    return int(str(time)) if is_number else None


def _frames(stack: object) -> tuple[Frame, ...]:
    """The last frames of a traceback's text, innermost first."""
    if not isinstance(stack, str):
        return ()
    lines = _FRAME.findall(stack)[-_MOST_FRAMES:]
    return tuple(Frame(file, int(line), name) for file, line, name in reversed(lines))
