"""Reading an error file that torchrun's ranks write (TORCHELASTIC_ERROR_FILE, or its log folder's
error.json).

The form is that of torch/distributed/elastic/multiprocessing/errors/error_handler.py.
"""

from __future__ import annotations

import json
import os
import re

from vramlens.errors import NotARecording, UnsafeInput
from vramlens.read.opened_source import open_source
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
        data = source.stream.read(_LARGEST_BYTES + 1)
    if len(data) > _LARGEST_BYTES:
        raise UnsafeInput(f"{source.name}: larger than any error file ({_LARGEST_BYTES >> 20} MiB)")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    outer = as_dict(value)
    inner = outer.get("message")
    if isinstance(inner, dict):
        text, more = inner.get("message"), as_dict(inner.get("extraInfo"))
    else:
        text, more = inner, as_dict(outer.get("extraInfo"))
    if not isinstance(text, str):
        raise NotARecording(f"{source.name}: not a torchrun error file: it has no message")
    stack, time = more.get("py_callstack"), more.get("timestamp")
    frame_lines = _FRAME.findall(stack) if isinstance(stack, str) else []
    frames = tuple(
        Frame(file, int(line), name) for file, line, name in reversed(frame_lines[-_MOST_FRAMES:])
    )
    message = " ".join(text.split())[:_LONGEST_MESSAGE]
    seconds = (
        int(time) if isinstance(time, (str, int)) and re.fullmatch(r"\d{1,12}", str(time)) else None
    )
    return RankError(source.name, message, seconds, frames, tells_of_another(message))
