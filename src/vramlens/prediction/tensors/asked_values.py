"""Where the user's own code was given a value that nobody knows, and that was made up."""

from __future__ import annotations

import linecache
import os
import sys
from types import CodeType, FrameType

import vramlens
from vramlens.ground.place import is_user_file
from vramlens.prediction.requests.request_log import RequestLog, is_only_predicted

_OURS = os.path.join(os.path.dirname(vramlens.__file__), "")


class AskedValues:
    """The lines that asked for such values.

    Attributes:
        lines: by file.
        files: those of the user's that were running then, the callers' among them.
        last: the file and line that did so last.
        moments: each time that one asked, the row of the next request and the number of the stack.
    """

    def __init__(self, log: RequestLog) -> None:
        self._log = log
        self.moments: list[tuple[int, int]] = []
        self.lines: dict[str, set[int]] = {}
        self.files: dict[str, None] = {}
        self.last: tuple[str, int] | None = None
        self._seen: set[tuple[CodeType, int]] = set()

    def note(self) -> None:
        """Notes the line that asks now; a library's own questions are not the user's."""
        frame = _asking_frame()
        if frame is None or not is_user_file(frame.f_code.co_filename):
            return
        self.moments.append(self._log.now())
        self.last = frame.f_code.co_filename, frame.f_lineno
        if (frame.f_code, frame.f_lineno) in self._seen:
            return
        self._seen.add((frame.f_code, frame.f_lineno))
        file = frame.f_code.co_filename
        self.lines.setdefault(file, set()).add(frame.f_lineno)
        while frame is not None:
            caller = frame.f_code.co_filename
            if is_user_file(caller) and not caller.startswith(_OURS):
                self.files[caller] = None
            frame = frame.f_back


def asserted_truth() -> bool | None:
    """What an assertion wants to be true that asks now, as it holds in a run; None elsewhere, and
    where it asks several questions one of which is negated.
    """
    frame = _asking_frame()
    if frame is None:
        return None
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    if not line.startswith("assert "):
        return None
    negations = line.count(" not ")
    if negations and not (
        negations == 1 and line.startswith("assert not ") and " and " not in line
    ):
        return None
    return not negations


def _asking_frame() -> FrameType | None:
    """The frame of the program, or of a library of it, that asks for a value."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and is_only_predicted(frame.f_code.co_filename):
        frame = frame.f_back
    return frame
