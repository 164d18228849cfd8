"""The last look at a redacted recording: every member is searched for what was to go, however it got there."""

from __future__ import annotations

import errno
import json
import zipfile
from collections.abc import Iterator, Sequence
from typing import IO

_CHUNK_BYTES = 1 << 22
_SHORT_STRING, _LONG_STRING = 0x8C, 0x58
"""How pickle begins a text (SHORT_BINUNICODE and BINUNICODE of pickletools): its length follows, in 1 or 4 bytes."""
_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def check_redacted(path: str, folders: Sequence[str], words: Sequence[tuple[str, str]]) -> None:
    """Searches the members of a recording.

    Args:
        folders: paths that must not be in it.
        words: texts that must not be in it by themselves, each with what it is.

    Raises:
        OSError: one of them is.
    """
    texts = [(folder, "a folder of yours", False) for folder in folders]
    texts += [(word, "an argument" if kind == "argument" else f"your {kind}", True) for word, kind in words]
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            is_pickle = name.endswith(".pickle")
            needles = [(_as_written(text, is_pickle), kind, is_word) for text, kind, is_word in texts]
            overlap = max((len(data) for data, _, _ in needles), default=0) + 8
            with archive.open(name) as member:
                for chunk in _overlapping(member, overlap):
                    for data, kind, is_word in needles:
                        if _is_in(chunk, data, is_word, is_pickle):
                            raise OSError(errno.EPERM, f"--redact: {name} would still tell {kind}")


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
        if not _is_letter(chunk, end) and (
            not is_word or not _is_letter(chunk, start - 1) or (is_pickle and _begins_text(chunk, start, len(data)))
        ):
            return True
        start = chunk.find(data, start + 1)
    return False


def _is_letter(chunk: bytes, index: int) -> bool:
    return 0 <= index < len(chunk) and chunk[index] in _LETTERS


def _begins_text(chunk: bytes, start: int, length: int) -> bool:
    """Whether a pickled text begins there: the byte before may be its length, and look like a letter."""
    if start >= 2 and chunk[start - 2] == _SHORT_STRING:
        return chunk[start - 1] >= length
    if start >= 5 and chunk[start - 5] == _LONG_STRING:
        return int.from_bytes(chunk[start - 4 : start], "little") >= length
    return False
