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

TEE: type = type(itertools.tee(())[0])
"""The type of a half."""
_BLOCK: type = itertools._tee_dataobject  # type: ignore[attr-defined]
_PLACES = 57
"""Entries of a block: LINKCELLS in CPython's itertoolsmodule.c."""
_MOST_BLOCKS = 1000
"""Of one half that are counted, with 57,000 entries: 5 ms on a busy machine, at each step where the
half is followed. Twice as many take twice as long; with half as many, one that lags by more seems to
stand still sooner.
"""
_INDEX_AT = object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p)
"""Where a half has the number of entries that it has read of its block: after the block."""


def _index_of(tee: object) -> int:
    """What a half has at that place: the number of entries that it has read of its block."""
    return ctypes.c_int.from_address(id(tee) + _INDEX_AT).value


def _has_index_there() -> bool:
    """Whether this interpreter has the number at that place, tried with a tee of our own."""
    if TEE.__basicsize__ < _INDEX_AT + ctypes.sizeof(ctypes.c_int):
        return False
    ahead, behind = itertools.tee(range(_PLACES))
    indices = [(_index_of(ahead), _index_of(behind)) for _ in zip(range(3), ahead, strict=False)]
    return indices == [(1, 0), (2, 0), (3, 0)]


_IS_INDEX_KNOWN = _has_index_there()


def is_tee(value: object) -> bool:
    """Whether an object is a half of a tee."""
    return type(value) is TEE


def is_tee_block(value: object) -> bool:
    """Whether an object is a block that halves share."""
    return type(value) is _BLOCK


def blocks_from(tee: object) -> Iterator[Any]:
    """Yields the blocks that a half keeps, the one that it reads first; of very many the first."""
    block = _block_held_by(tee)
    for _ in range(_MOST_BLOCKS):
        if block is None:
            return
        yield block
        block = _block_after(block)


def entries_of(tee: object) -> tuple[int, int]:
    """How many entries are in the blocks that a half keeps; and how many of them others have read
    and it has not.
    """
    blocks, last = 0, None
    for block in blocks_from(tee):
        blocks, last = blocks + 1, block
    if last is None:
        return 0, 0
    kept_entries = (blocks - 1) * _PLACES + _entries_in(last)  # those before the last are full
    return kept_entries, max(kept_entries - places_read(tee), 0)


def places_read(tee: object) -> int:
    """How many entries a half has read of its block; 0 where that cannot be told."""
    index = _index_of(tee) if _IS_INDEX_KNOWN else 0
    return index if 0 <= index <= _PLACES else 0


def _block_held_by(tee: object) -> Any:
    return next(filter(is_tee_block, gc.get_referents(tee)), None)


def _block_after(block: object) -> Any:
    """The next block, which a block names last of all that it holds."""
    last = gc.get_referents(block)[-1:]
    return last[0] if last and is_tee_block(last[0]) else None


def _entries_in(block: object) -> int:
    """The entries of a block: what it holds beside its class, the iterator and the next block."""
    referents = gc.get_referents(block)
    beside = sum(1 for value in referents if value is _BLOCK or is_tee_block(value))
    return max(len(referents) - beside - 1, 0)
