"""Columns in a page: whole numbers as byte planes, compressed, behind one JSON header.

The layout, which ``viewer/src/data/container.ts`` reads::

    "vramview"  8 bytes
    length      of the compressed header, 4 bytes, little-endian
    header      JSON, compressed (zlib)
    chunks      compressed (zlib); the header's ``columns`` say in which chunk each is, and from
                where: small columns share one, since a thousand ranks have fifty each

A column of n numbers is as many planes of n bytes as its largest number needs, the lowest bytes
first. A column that grows slowly is stored as differences, zigzag-coded (0, -1, 1, -2, ...), as
protocol buffers do.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC = b"vramview"
_LARGEST = 1 << 53
"""What a browser's numbers hold exactly; larger ones come from damaged or hostile recordings and
are cut to it.
"""
_LEVEL = 4
_SHARED_BYTES = 1 << 16
"""Planes that follow each other share a chunk up to so many bytes."""
_BLOCK_ROWS = 1 << 15
"""Rows that are coded at once: what lies between stays in the processor's cache."""
_MOST_PLANES = 8


class Columns:
    """Collects columns, and says in the header where each one is.

    Each is compressed beside whatever comes next: compressing lets go of the interpreter.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2)
        self._described: list[dict[str, Any]] = []
        self._chunks: list[Future[bytes]] = []
        self._open: list[bytes] = []
        self._open_bytes = 0

    def add(self, values: NDArray[Any], *, differences: bool = False) -> int:
        """The number of a new column.

        Args:
            values: whole numbers, not negative.
            differences: store what each adds to the one before.
        """
        planes, described = encode(values, differences=differences)
        if self._open_bytes + len(planes) > _SHARED_BYTES:
            self._close_chunk()
        self._described.append({**described, "chunk": len(self._chunks), "from": self._open_bytes})
        self._open.append(planes)
        self._open_bytes += len(planes)
        return len(self._described) - 1

    def _close_chunk(self) -> None:
        if self._open:
            self._chunks.append(self._pool.submit(zlib.compress, b"".join(self._open), _LEVEL))
        self._open = []
        self._open_bytes = 0

    def container(self, header: Mapping[str, Any]) -> bytes:
        """The whole file: the header with all columns behind it."""
        self._close_chunk()
        self._pool.shutdown()
        packed = [chunk.result() for chunk in self._chunks]
        places, offset = [], 0
        for chunk in packed:
            places.append({"at": offset, "size": len(chunk)})
            offset += len(chunk)
        described = {"columns": self._described, "chunks": places}
        text = json.dumps({**header, **described}, allow_nan=False, separators=(",", ":"))
        head = zlib.compress(text.encode("ascii"), 6)
        return b"".join((MAGIC, len(head).to_bytes(4, "little"), head, *packed))


def encode(values: NDArray[Any], *, differences: bool) -> tuple[bytes, dict[str, Any]]:
    """The byte planes of a column, and what a reader must know of them."""
    planes = np.zeros((_MOST_PLANES, len(values)), np.uint8)
    highest = largest = before = 0
    for first in range(0, len(values), _BLOCK_ROWS):
        numbers = _exact_numbers(values[first : first + _BLOCK_ROWS])
        highest = max(highest, int(numbers.max()))
        coded = np.maximum(numbers, 0)
        if differences:
            steps = np.diff(numbers, prepend=before)
            coded = (steps << 1) ^ (steps >> 63)
            before = int(numbers[-1])
        unsigned = coded.astype("<u8")
        largest = max(largest, int(unsigned.max()))
        low_bytes = unsigned.view(np.uint8).reshape(-1, _MOST_PLANES)
        for plane in range(_planes_of(largest)):
            planes[plane, first : first + _BLOCK_ROWS] = low_bytes[:, plane]
    used = max(1, _planes_of(largest))
    return planes[:used].tobytes(), {
        "n": len(values),
        "planes": used,
        "delta": differences,
        "max": highest,
    }


def _exact_numbers(values: NDArray[Any]) -> NDArray[np.int64]:
    """Whole numbers, cut to what a browser's numbers hold."""
    if values.dtype.itemsize == 8:
        values = np.minimum(values, values.dtype.type(_LARGEST))
    return values.astype(np.int64)


def _planes_of(largest: int) -> int:
    """How many bytes a number takes."""
    return (largest.bit_length() + 7) // 8
