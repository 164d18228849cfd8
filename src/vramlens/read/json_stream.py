"""JSON piece by piece: values one after the other from a stream, of which only a window is ever
in memory.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

from vramlens.errors import UnsafeInput

_BLOCK = 1 << 22
LARGEST_VALUE = 1 << 22
"""Characters of one value: a profiler's events have hundreds, its facts thousands."""
_LONGEST_WORD = 64
"""Characters by which it is certain that a word that JSON has not (``inf``) is none that the
window cuts.
"""
_IN_NUMBERS = ("", *"0123456789.eE+-")
_SPACE = re.compile(r"[ \t\n\r]*")
_BETWEEN = re.compile(r"[ \t\n\r]*,?[ \t\n\r]*")


class Malformed(Exception):
    """What comes next is not JSON; ``ended``: because the text ends within it."""

    def __init__(self, text: str, *, ended: bool = False) -> None:
        super().__init__(text)
        self.ended = ended


class JsonStream:
    """Reads values from a stream of UTF-8, from the first byte on.

    Args:
        stream: the bytes.
        progress: called after every block.
    """

    def __init__(self, stream: BinaryIO, progress: Callable[[], None] | None = None) -> None:
        self._stream, self._progress = stream, progress
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._scan = cast(Any, json.JSONDecoder(strict=False)).scan_once
        self._kept: list[bytes] | None = []
        self.text, self.at, self.ended = "", 0, False

    def rewound(self) -> io.BufferedReader:
        """The stream's bytes from the first on, once more; not after ``keep_no_more``."""
        return io.BufferedReader(cast(Any, _Chained(self._kept or [], self._stream)), 1 << 20)

    def keep_no_more(self) -> None:
        """Forgets the bytes read so far, which are kept for ``rewound`` until then."""
        self._kept = None

    def _more(self, least: int = 1) -> bool:
        """Reads on; what lies before the present place is forgotten. False at the end."""
        if self.ended:
            return False
        pieces, got = [self.text[self.at :]], 0
        while got < least and not self.ended:
            block = self._stream.read(_BLOCK)
            self.ended = not block
            if self._kept is not None:
                self._kept.append(block)
            pieces.append(self._decoder.decode(block, self.ended))
            got += len(block)
            if self._progress is not None:
                self._progress()
        self.text, self.at = "".join(pieces), 0
        return True

    def peek(self) -> str:
        """The next character that is not a space; "" at the end."""
        while True:
            self.at = cast(re.Match[str], _SPACE.match(self.text, self.at)).end()
            if self.at < len(self.text) or not self._more():
                return self.text[self.at : self.at + 1]

    def take(self, character: str) -> bool:
        """Whether this character comes next; if so it is passed."""
        is_next = self.peek() == character
        self.at += is_next
        return is_next

    def value(self) -> Any:
        """The next value.

        Raises:
            Malformed: there is none.
            UnsafeInput: it is too large or too deep.
        """
        self.peek()
        while True:
            size = len(self.text) - self.at
            try:
                parsed, end = self._scan(self.text, self.at)
            except (ValueError, StopIteration) as error:  # also a number with too many digits
                is_certain = self._is_certain(error)
                if self.ended or is_certain:
                    raise Malformed(str(error), ended=self.ended and not is_certain) from None
            except RecursionError:
                raise UnsafeInput("JSON nested too deeply") from None
            else:
                if self.ended or not self._may_go_on(parsed, end):
                    self.at = end
                    return parsed
            if size > LARGEST_VALUE:
                raise Malformed(f"a value of more than {LARGEST_VALUE:,} characters")
            self._more(size)  # twice as much each time: what is long is not read over and over

    def _may_go_on(self, parsed: Any, end: int) -> bool:
        """True for a number at the window's end: 12 is also the beginning of 123 and of 12.5."""
        is_number = not isinstance(parsed, (dict, list, str))
        return is_number and self.text[end : end + 1] in _IN_NUMBERS

    def _is_certain(self, error: Exception) -> bool:
        """Whether a mistake does not come from where the window ends."""
        place = error.value if isinstance(error, StopIteration) else getattr(error, "pos", None)
        cut = not isinstance(place, int) or place >= len(self.text) - _LONGEST_WORD
        return not cut and "Unterminated" not in str(error)

    def members(self) -> Iterator[str]:
        """The keys of the object that begins here; the caller reads each one's value before the
        next.

        Raises:
            Malformed: it is not an object, or not a whole one.
        """
        self._expect("{")
        if self.take("}"):
            return
        while True:
            key = self.value()
            if not isinstance(key, str):
                raise Malformed("a key that is not text")
            self._expect(":")
            yield key
            if not self.take(","):
                break
            if self.take("}"):  # kineto has written a comma after the last one
                return
        self._expect("}")

    def elements(self) -> Iterator[Any]:
        """The values of the array that begins here.

        Raises:
            Malformed: it is not an array, or not a whole one.
        """
        self._expect("[")
        scan, between = self._scan, _BETWEEN.match
        if not self.take("]"):
            while True:
                try:  # the quick way, for what lies wholly within the window
                    element, self.at = scan(self.text, self.at)
                except (ValueError, StopIteration, RecursionError):
                    element = self.value()
                else:
                    if self.at == len(self.text) and not isinstance(element, dict):
                        raise Malformed("an event that is not an object")
                yield element
                self.at = cast(re.Match[str], between(self.text, self.at)).end()
                if self.at == len(self.text):
                    self.take(",")
                    self.peek()
                if self.text[self.at : self.at + 1] == "]":
                    break
            self.at += 1

    def _expect(self, character: str) -> None:
        if not self.take(character):
            raise Malformed(f"{character} is missing", ended=self.peek() == "")


class _Chained(io.RawIOBase):
    """Blocks that were read already, then the rest of the stream."""

    def __init__(self, blocks: list[bytes], stream: BinaryIO) -> None:
        self._first, self._stream = io.BytesIO(b"".join(blocks)), stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        block = self._first.read(len(view)) or self._stream.read(len(view))
        view[: len(block)] = block
        return len(block)
