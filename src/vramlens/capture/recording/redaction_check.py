"""The last look at a redacted recording: every member is searched for what was to go, however it
got there.
"""

from __future__ import annotations

import errno
import json
import zipfile
from collections.abc import Iterator, Sequence
from typing import IO

from vramlens.capture.recording.private_facts import is_short

_CHUNK_BYTES = 1 << 22
_SHORT_STRING, _LONG_STRING, _MEMOIZE = b"\x8c", b"X", b"\x94"
"""How pickle begins a text (SHORT_BINUNICODE and BINUNICODE of pickletools), its length
following in 1 or 4 bytes, and what follows the text.
"""
_LONGEST_TEXT = 1 << 16
_NO_NUMBER_BYTES = 9
"""So many bytes are not a number."""
_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def check_redacted(path: str, folders: Sequence[str], words: Sequence[tuple[str, str]]) -> None:
    """Searches the members of a recording.

    Args:
        folders: paths that must not be in it.
        words: texts that must not be in it by themselves, each with what it is.

    Raises:
        OSError: one of them is.
    """
    texts = [(folder, "one of your folders", is_short(folder)) for folder in folders]
    texts += [
        (word, "an argument" if kind == "argument" else f"your {kind}", True)
        for word, kind in words
    ]
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            is_pickle = name.endswith(".pickle")
            needles = [
                (_as_written(text, is_pickle), kind, is_word) for text, kind, is_word in texts
            ]
            overlap = max((len(needle) for needle, _, _ in needles), default=0) + _LONGEST_TEXT
            with archive.open(name) as member:
                for chunk in _overlapping(member, overlap):
                    for needle, kind, is_word in needles:
                        if _is_in(chunk, needle, is_word, is_pickle):
                            raise OSError(
                                errno.EPERM, f"--redact: {name} would still reveal {kind}"
                            )


def _overlapping(member: IO[bytes], overlap: int) -> Iterator[bytes]:
    """Each chunk with the end of the one before it."""
    before = b""
    while piece := member.read(_CHUNK_BYTES):
        chunk = before + piece
        yield chunk
        before = chunk[-overlap:]


def _as_written(text: str, is_pickle: bool) -> bytes:
    """The bytes of a text as the member's form has them."""
    return text.encode("utf-8", "surrogatepass") if is_pickle else json.dumps(text)[1:-1].encode()


def _is_in(chunk: bytes, data: bytes, is_word: bool, is_pickle: bool) -> bool:
    start = chunk.find(data)
    while start >= 0:
        end = start + len(data)
        begin = _beginning_of_text(chunk, start, end) if is_pickle else None
        # Of so many numbers some have the bytes of a short word: it must be in a text.
        is_text = not is_pickle or begin is not None or len(data) >= _NO_NUMBER_BYTES
        stands_alone = not is_word or start == begin or not _is_letter(chunk, start - 1)
        if is_text and stands_alone and not _is_letter(chunk, end):
            return True
        start = chunk.find(data, start + 1)
    return False


def _is_letter(chunk: bytes, index: int) -> bool:
    return 0 <= index < len(chunk) and chunk[index] in _LETTERS


def _beginning_of_text(chunk: bytes, start: int, end: int) -> int | None:
    """Where the pickled text begins that holds these bytes; None where there is none."""
    for code, width, longest in ((_SHORT_STRING, 1, 256), (_LONG_STRING, 4, _LONGEST_TEXT)):
        at = chunk.rfind(code, max(0, start - longest - width), start)
        while at >= 0:
            begin = at + 1 + width
            text_end = begin + int.from_bytes(chunk[at + 1 : begin], "little")
            if begin <= start and text_end >= end and _ends_text(chunk, begin, text_end):
                return begin
            at = chunk.rfind(code, max(0, start - longest - width), at)
    return None


def _ends_text(chunk: bytes, begin: int, end: int) -> bool:
    """True where a text ends: pickle memorizes each one; the end may lie in the next chunk."""
    if end - begin > _LONGEST_TEXT or end >= len(chunk):
        return end - begin <= _LONGEST_TEXT
    try:
        chunk[begin:end].decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return chunk[end : end + 1] == _MEMOIZE
