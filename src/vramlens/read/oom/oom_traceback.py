"""The traceback above an out-of-memory error in a log: the innermost line in it that is the user's
own, and the library's line below that.

Python's own tracebacks, a notebook's (IPython, Colab) and rich's boxes are known, each rank's apart
from the others', behind whatever a launcher or a logger puts before their lines. Only lines near a
traceback are looked at, each once
and no more of it than ``_LONGEST_LINE``: time is linear in the log, and memory is bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from vramlens.read.broken_lines import ANSI
from vramlens.trace.stacks import Frame, is_code_file, is_user_file

_LONGEST_LINE = 2000  # bytes
_LONGEST_NAME = 300  # of a function
_LONGEST_SOURCE = 120
_MOST_STREAMS = 4096  # ranks whose tracebacks are followed at the same time
_LINES_AFTER_FRAME = 200  # of its stream, after which a traceback is taken to have broken off
_LINES_AFTER_END = 40  # in which a second traceback says that it is chained to the first
_SILENCE = 10_000  # lines of all streams without one of its own: the same

_HEAD = b"Traceback (most recent call last)"
_STREAM = re.compile(
    rb"\[(?:rank|default)[ :]?\d{1,7}\]|^\d{1,7}(?=: )|^\(\w[^()]{0,100}?\bpid=\d{1,10}\b"
)
_STREAM_PREFIX = re.compile(r"(?:\[(?:rank|default)[ :]?\d{1,7}\]:?[ \t]?|\d{1,7}: ){1,3}")
_DIGITS = bytes.maketrans(b"123456789", b"000000000")

_PYTHON = re.compile(r'( *)File "([^"]{1,1500})", line (\d{1,9}), in (.{1,300})')
_CELL = re.compile(r"((?:Cell|Input) In ?\[\d{1,7}\])(?:, line (\d{1,9}))?(?:, in (.{1,300}))?$")
_ARROW = re.compile(r"-{1,12}> ?(\d{1,9})\b")
_BOXED = re.compile(r"(.{1,1500}):(\d{1,9}) in(?: (.{1,300}))?$")
_SCRIPT = re.compile(
    r"[/\\](?:bin|Scripts)[/\\][^/\\.]{1,100}(?:\.exe)?$"
)  # what pip installs to start a package
# Lines of a notebook's traceback that have no indent and are not an end.
_WITHIN = re.compile(r"\d{1,9} frames$|\d{1,9}(?:\s|$)|-{10}|\.\.\.")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_GOES_ON = re.compile(r"[A-Za-z_][\w.]{0,200}: NCCL error")  # what ran out is said some lines later
_LINES_OF_TEXT = 8


@dataclass(frozen=True, slots=True)
class FailedLine:
    """Where a traceback says that a request failed.

    Attributes:
        frame: the innermost line of the user's.
        library: the innermost line of a library's below it, outside of PyTorch's plumbing; None
            where there is none.
        library_source: that line's text; "" where the traceback does not print it.
    """

    frame: Frame
    library: Frame | None = None
    library_source: str = ""


@dataclass(slots=True)
class _Traceback:
    """The latest traceback of one stream, as far as it has been read.

    Attributes:
        prefix: what stands before each of its lines, with every digit as 0.
        kind: python, notebook or box.
        base: how far its last line, which names the exception, is indented.
        failed: the innermost line of the user's so far, with the library's below it.
        origin: that of the failure that this traceback is chained to.
        given: which of the two a message was given.
        awaits_source: whether the next line is the library's source text.
        waiting: a notebook's frame, file and function, whose line number stands at the arrow below
            it.
        lines_left: how many more lines of its stream are looked at.
        heard: the number of its last line, among those of all streams.
    """

    prefix: bytes
    kind: str
    base: int = 0
    failed: FailedLine | None = None
    origin: FailedLine | None = None
    given: FailedLine | None = None
    awaits_source: bool = False
    waiting: tuple[str, str] | None = None
    lines_left: int = _LINES_AFTER_FRAME
    heard: int = 0
    has_ended: bool = False
    goes_on: bool = False  # the exception's text does
    is_chained: bool = False  # to what follows

    def follow(self, text: str) -> None:
        """Takes the next line of its stream, without what stands before each line."""
        if self.has_ended:
            self.is_chained = self.is_chained or text.lstrip().startswith(_CHAINED)
            self.goes_on = self.goes_on and self.lines_left > _LINES_AFTER_END - _LINES_OF_TEXT
            return
        line = text.strip()
        if line.startswith(
            "ray.exceptions.RayTaskError("
        ):  # the worker's own frames follow, under no other header
            self.failed = None
            return
        is_part = not line or {
            "python": self._python,
            "notebook": self._notebook,
            "box": self._box,
        }[self.kind](text)
        if not is_part:
            self.has_ended, self.lines_left = True, _LINES_AFTER_END
            self.goes_on = _GOES_ON.match(line) is not None

    def _python(self, text: str) -> bool:
        text = (
            f"  {text[2:]}" if text.startswith("> File") else text
        )  # loguru's mark of the frame that caught it
        if frame_line := _PYTHON.match(text):
            self.base = max(0, len(frame_line[1]) - 2)
            self._note(frame_line[2], frame_line[3], frame_line[4])
            self.awaits_source = True
        elif self.awaits_source:
            self._note_source(text.strip())
        return frame_line is not None or _indent(text) > self.base

    def _notebook(self, text: str) -> bool:
        line = text.strip()
        if arrow := _ARROW.match(line):
            if self.waiting is not None:
                self._note(self.waiting[0], arrow[1], self.waiting[1])
            self.waiting = None
            return True
        if _indent(text) or _WITHIN.match(line):
            return True
        place = _notebook_place(line)
        if place is None:
            return False
        file, number, function = place
        function = re.split(r"(?<!^)\(", function, maxsplit=1)[0]
        self.waiting = None if number else (file, function)
        if number:
            self._note(file, number, function)
        return True

    def _box(self, text: str) -> bool:
        line = text.strip()
        if line[0] not in "│┃╭╰┏┗|":
            return False
        inside = line[1:].rstrip("│┃| ")
        if inside[:1] != " " or inside[1:2] in ("", " ", "❱", ">"):
            return True
        if frame_line := _BOXED.match(inside[1:]):
            self._note(frame_line[1], frame_line[2], frame_line[3] or "")
        elif inside[1] in "/~\\" and is_user_file(inside[1:]):
            # A path broken over lines: which line of the user's comes last is not known.
            self.failed = None
        return True

    def _note(self, file: str, number: str, function: str) -> None:
        self.lines_left = _LINES_AFTER_FRAME
        is_line = number.isascii() and number.isdigit() and not _SCRIPT.search(file)
        if not is_line or not is_code_file(file):
            return
        frame = Frame(file, int(number[:9]), function.strip()[:_LONGEST_NAME])
        if is_user_file(file):
            self.failed = FailedLine(frame)
        elif self.failed is not None:
            self.failed = FailedLine(self.failed.frame, frame)

    def _note_source(self, text: str) -> None:
        """Takes the line below a frame: of the library's innermost line it is the source."""
        self.awaits_source = False
        failed = self.failed
        if failed is not None and failed.library is not None and not failed.library_source:
            self.failed = replace(failed, library_source=text[:_LONGEST_SOURCE])


class Tracebacks:
    """Follows the tracebacks of a log, which is handed over piece by piece, each of whole lines."""

    def __init__(self) -> None:
        self._streams: dict[bytes, _Traceback] = {}
        self._lines = 0

    def read(self, buffer: bytes, start: int, end: int) -> None:
        """Goes through the lines of ``buffer[start:end]``."""
        while start < end:
            if not self._streams:
                next_head = buffer.find(_HEAD, start, end)
                if next_head < 0:
                    return
                start = max(start, buffer.rfind(b"\n", start, next_head) + 1)
            stop = buffer.find(b"\n", start, end)
            stop = end if stop < 0 else stop
            self._line(buffer[start : min(stop, start + _LONGEST_LINE)])
            start = stop + 1

    def failed_line(self, before: bytes) -> FailedLine | None:
        """The lines of a failure whose message stands on the next line, after ``before``;
        None if not known.
        """
        if not self._streams or len(before) >= _LONGEST_LINE:
            return None
        before = ANSI.sub(b"", before)
        traceback = self._streams.get(_stream_of(before))
        if traceback is None or _HEAD in before:
            return None
        if traceback.has_ended:
            if not traceback.goes_on:
                return None
        elif _indent(_text(before + b"x", traceback.prefix)) > traceback.base:
            return None  # a line of source code that quotes the message
        traceback.given = traceback.origin or traceback.failed
        return traceback.given

    def _line(self, line: bytes) -> None:
        self._lines += 1
        line = ANSI.sub(b"", line) if b"\x1b" in line else line
        key = _stream_of(line)
        traceback = self._streams.get(key)
        if _HEAD in line:
            self._begin(key, line, traceback)
        elif traceback is not None:
            traceback.heard = self._lines
            traceback.lines_left -= 1
            traceback.follow(_text(line, traceback.prefix))
            if traceback.lines_left <= 0:
                del self._streams[key]
        if self._lines % _SILENCE == 0:
            self._streams = {
                key: traceback
                for key, traceback in self._streams.items()
                if traceback.heard > self._lines - _SILENCE
            }

    def _begin(self, key: bytes, line: bytes, before: _Traceback | None) -> None:
        prefix, _, after = line.partition(_HEAD)
        kind = "python" if after.startswith(b":") else "notebook"
        kind = "box" if prefix.decode("utf-8", "replace").lstrip()[:1] in ("╭", "┏") else kind
        begun = _Traceback(
            prefix.translate(_DIGITS) if kind == "python" else b"", kind, heard=self._lines
        )
        begun.origin = (
            (before.given or before.origin) if before is not None and before.is_chained else None
        )
        self._streams.pop(key, None)
        self._streams[key] = begun
        if len(self._streams) > _MOST_STREAMS:
            del self._streams[next(iter(self._streams))]


def _notebook_place(line: str) -> tuple[str, str, str] | None:
    """The file, line and function that IPython heads a frame with; the line "" where it stands at
    an arrow below; None for what is not such a head.
    """
    if cell := _CELL.match(line):
        return cell[1], cell[2], cell[3] or ""
    if line.startswith("File "):  # ~/train.py:20, in step(model, batch)
        place, _, function = line[5:].partition(", in ")
        file, _, number = place.rpartition(":")
        return file, number, function
    # ~/train.py in step(model, batch); Colab makes the file a link
    file, _, function = line.partition(" in ")
    if file.startswith("[") and "](" in file:
        file = file[1 : file.find("](")]
    return (file, "", function) if function and file.endswith((".py", ">")) else None


def _stream_of(line: bytes) -> bytes:
    """What tells the lines of one process from those of others: its rank or pid, as launchers
    put it before them.
    """
    return b" ".join(_STREAM.findall(line[:_LONGEST_NAME]))


def _text(line: bytes, prefix: bytes) -> str:
    """A line without what its traceback has before each line, or without its rank; with its
    indent.
    """
    if prefix and line[: len(prefix)].translate(_DIGITS) == prefix:
        return line[len(prefix) :].decode("utf-8", "replace")
    text = line.decode("utf-8", "replace")
    rank = _STREAM_PREFIX.match(text)
    return text[rank.end() :] if rank else text


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())
