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
    wide = values.dtype.itemsize == 8
    numbers = (np.minimum(values, values.dtype.type(_LARGEST)) if wide else values).astype(np.int64)
    if differences:
        steps = np.diff(numbers, prepend=np.int64(0))
        coded = ((steps << 1) ^ (steps >> 63)).astype(np.uint64)
    else:
        coded = np.maximum(numbers, 0).astype(np.uint64)
    largest = int(coded.max(initial=0))
    planes = max(1, (largest.bit_length() + 7) // 8)
    width = next(width for width in (1, 2, 4, 8) if width >= planes)
    narrow = coded.astype(f"<u{width}")
    data = np.ascontiguousarray(
        narrow.view(np.uint8).reshape(len(narrow), width)[:, :planes].T
    ).tobytes()
    return data, {
        "n": len(numbers),
        "planes": planes,
        "delta": differences,
        "max": int(numbers.max(initial=0)),
    }
