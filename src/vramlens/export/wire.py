"""Wire: protobuf messages, field by field, and a million alike at once.

The encoding is that of https://protobuf.dev/programming-guides/encoding/: a field is its number and
type, then a varint or a length and so many bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_VARINT, _LENGTH = 0, 2
_LONGEST = 10
"""Bytes that 64 bits take, seven a byte."""
Rows = tuple[NDArray[np.uint8], NDArray[np.bool_]]
"""Bytes, a row each, and which of them count."""


def varint(value: int) -> bytes:
    """A number in seven bits a byte, the lowest first; negative ones as their 64 bits."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number(field: int, value: int) -> bytes:
    """A field that holds a number."""
    return varint(field << 3 | _VARINT) + varint(value)


def message(field: int, *parts: bytes) -> bytes:
    """A field that holds a message, or bytes."""
    data = b"".join(parts)
    return varint(field << 3 | _LENGTH) + varint(len(data)) + data


def text(field: int, value: str) -> bytes:
    """A field that holds text; what UTF-8 cannot say is replaced."""
    return message(field, value.encode("utf-8", "replace"))


def tag(field: int) -> bytes:
    """What comes before a number's varint."""
    return varint(field << 3 | _VARINT)


def rows(count: int, *parts: bytes | NDArray[np.int64]) -> Rows:
    """Many runs of bytes that differ only in numbers: a matrix with a row each, and which of its
    bytes count.

    Args:
        count: how many rows.
        parts: bytes that all rows share, or one number a row, written as a varint.
    """
    width = sum(len(part) if isinstance(part, bytes) else _LONGEST for part in parts)
    matrix, counts = np.zeros((count, width), np.uint8), np.ones((count, width), np.bool_)
    at = 0
    for part in parts:
        if isinstance(part, bytes):
            matrix[:, at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)
            continue
        remaining = part.astype(np.uint64)
        for place in range(_LONGEST):
            more = remaining > 0x7F
            matrix[:, at + place] = (remaining & np.uint64(0x7F)).astype(np.uint8) | (
                more.astype(np.uint8) << 7
            )
            if place:
                counts[:, at + place] = remaining > 0
            remaining = remaining >> np.uint64(7)
        at += _LONGEST
    return matrix, counts


def messages(field: int, matrix: NDArray[np.uint8], counts: NDArray[np.bool_]) -> Rows:
    """Each row as a field that holds a message of at most 127 bytes."""
    lengths = counts.sum(axis=1)
    if len(lengths) and int(lengths.max()) > 0x7F:
        raise ValueError("a row is longer than 127 bytes")
    head = np.empty((len(matrix), len(varint(field << 3 | _LENGTH)) + 1), np.uint8)
    head[:, :-1] = np.frombuffer(varint(field << 3 | _LENGTH), np.uint8)
    head[:, -1] = lengths
    return np.hstack((head, matrix)), np.hstack((np.ones(head.shape, np.bool_), counts))
