"""Where the user's own code was given a value that nobody knows, and that was made up."""

from __future__ import annotations

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
        moments: each time that one asked, the row of the next request and the number of the stack.
    """

    def __init__(self, log: RequestLog) -> None:
        self._log = log
        self.moments: list[tuple[int, int]] = []
        self.lines: dict[str, set[int]] = {}
        self.files: dict[str, None] = {}
        self._seen: set[tuple[CodeType, int]] = set()

    def note(self) -> None:
        """Notes the line that asks now; a library's own questions are not the user's."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and is_only_predicted(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None or not is_user_file(frame.f_code.co_filename):
            return
        self.moments.append(self._log.now())
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
