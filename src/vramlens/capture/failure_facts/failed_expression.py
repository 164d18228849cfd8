"""What asked for the memory that it did not get: the program's expression, as its file has it, or the
operation of a backward pass.
"""

from __future__ import annotations

import linecache
import sys
import traceback
from itertools import islice
from types import FrameType

from vramlens.capture.torch_api import loaded_torch
from vramlens.capture.triggers.ending_line import first_of_users
from vramlens.ground.live_objects import class_name
from vramlens.ground.program_errors import own_errors

_LONGEST = 300
_BYTES_OF_INSTRUCTION = 2


def failed_expression() -> str | None:
    """What the innermost of the program's own frames on this thread is computing, in one line: the
    expression, before Python 3.11 the whole line; None where no such frame has a file. Never raises: the
    recording matters more.
    """
    with own_errors():
        return _expression(sys._getframe(1))
    return None


def failed_node() -> str | None:
    """The operation whose gradient this thread is computing, as autograd calls it (``GatherBackward0``);
    None outside of a backward pass. Never raises.
    """
    with own_errors():
        node = loaded_torch()._C._current_autograd_node()
        return None if node is None else class_name(type(node))
    return None


def _expression(caller: FrameType) -> str | None:
    """What the innermost of the program's own frames from one on is computing."""
    users = first_of_users(traceback.walk_stack(caller))
    if users is None:
        return None
    frame, _line = users
    # As a traceback reads it, so that cells of a notebook have a text, too.
    lines = linecache.getlines(frame.f_code.co_filename)
    return " ".join(_text_of(frame, lines).split())[:_LONGEST] or None


def _text_of(frame: FrameType, lines: list[str]) -> str:
    """The text of what a frame is computing."""
    first, last, start, end = _position(frame)
    text = lines[first - 1 : last]
    if not text:
        return ""
    text[-1] = text[-1].encode()[:end].decode(errors="ignore")
    text[0] = text[0].encode()[start:].decode(errors="ignore")
    return " ".join(text)


def _position(frame: FrameType) -> tuple[int, int, int | None, int | None]:
    """First and last line, and the columns in bytes where it begins and ends; None for a line's."""
    whole_line = (frame.f_lineno, frame.f_lineno, None, None)
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is None:
        return whole_line
    position = next(islice(positions(), frame.f_lasti // _BYTES_OF_INSTRUCTION, None), whole_line)
    first, last, start, end = position
    return whole_line if first is None or last is None else (first, last, start, end)
