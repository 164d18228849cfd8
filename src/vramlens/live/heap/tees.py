"""What the halves of an ``itertools.tee`` have yet to read.

The halves share a chain of blocks with 57 entries each. Each half holds the block that it reads
next, and the block the one after it. So the half that lags behind keeps all that the others have
read since; but a block stays whole until all halves have left it.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
from collections.abc import Iterator
from typing import Any

_HALF: type = type(itertools.tee(())[0])
_BLOCK: type = itertools._tee_dataobject  # type: ignore[attr-defined]
_PLACES = 57
"""Entries of a block: LINKCELLS in CPython's itertoolsmodule.c."""
_INDEX_AT = object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p)
"""Where a half has the number of entries that it has read of its block: after the block."""


def _index_of(tee: object) -> int:
    """What a half has at that place: the number of entries that it has read of its block."""
    return ctypes.c_int.from_address(id(tee) + _INDEX_AT).value


def _has_index_there() -> bool:
    """Whether this interpreter has the number at that place, tried with a tee of our own."""
    if _HALF.__basicsize__ < _INDEX_AT + ctypes.sizeof(ctypes.c_int):
        return False
    ahead, behind = itertools.tee(range(_PLACES))
    seen = [(_index_of(ahead), _index_of(behind)) for _ in zip(range(3), ahead, strict=False)]
    return seen == [(1, 0), (2, 0), (3, 0)]


_IS_INDEX_KNOWN = _has_index_there()


def is_tee(value: object) -> bool:
    """Whether an object is a half of a tee."""
    return type(value) is _HALF


def is_tee_block(value: object) -> bool:
    """Whether an object is a block that halves share."""
    return type(value) is _BLOCK


def blocks_from(tee: object) -> Iterator[Any]:
    """Yields the blocks that a half keeps, the one that it reads first."""
    block = _block_held_by(tee)
    while block is not None:
        yield block
        block = _block_held_by(block)


def kept_entries(tee: object) -> int:
    """How many entries are in the blocks that a half keeps."""
    return sum(map(_entries_in, blocks_from(tee)))


def unread_entries(tee: object) -> int:
    """How many entries others have read and a half has not."""
    index = _index_of(tee) if _IS_INDEX_KNOWN else 0
    return max(kept_entries(tee) - index, 0) if 0 <= index <= _PLACES else 0


def _block_held_by(holder: object) -> Any:
    return next(filter(is_tee_block, gc.get_referents(holder)), None)


def _entries_in(block: object) -> int:
    """The entries of a block: what it holds beside its class, the iterator and the next block."""
    referents = gc.get_referents(block)
    beside = sum(1 for value in referents if value is _BLOCK or is_tee_block(value))
    return max(len(referents) - beside - 1, 0)
