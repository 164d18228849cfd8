"""What the C library's allocator has handed out: the only counter that a CPU has for tensors nobody
can see.

glibc's ``mallinfo2`` counts every tensor on the CPU, autograd's nodes and what other C code asks
for; Python's own small objects lie elsewhere. Other C libraries have no such counter, and nothing
is said there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import cache
from typing import Any


class _Mallinfo2(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def allocated_bytes() -> int | None:
    """Bytes in use of all arenas and mappings; None where the C library does not say."""
    read = _reader()
    if read is None:
        return None
    info = read()
    return int(info.uordblks) + int(info.hblkhd)


def may_be_counted(addresses: Iterable[int]) -> bool:
    """Whether memory at some addresses may be an allocator's: of no file and of no other process,
    which are on no counter. False where the system does not say.
    """
    try:
        with open("/proc/self/maps", "rb") as file:
            mappings = [_mapping(line) for line in file]
    except (OSError, ValueError, IndexError):
        return False
    return all(
        any(first <= address < last and not is_of_file for first, last, is_of_file in mappings)
        for address in addresses
    )


def _mapping(line: bytes) -> tuple[int, int, bool]:
    """The first address of a mapping, the first behind it, and whether it has an inode."""
    fields = line.split(maxsplit=5)
    first, last = fields[0].split(b"-")
    return int(first, 16), int(last, 16), fields[4] != b"0"


@cache
def _reader() -> Any:
    try:
        read = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    read.restype = _Mallinfo2
    return read
