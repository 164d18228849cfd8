"""Tables by number, whose keys say what is missing: ``reviews[number] = review``, ``weights[step] =
copy``.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from itertools import pairwise

from vramlens.live.heap.objects import dict_items, length_of
from vramlens.live.source.bounds import known_number
from vramlens.live.source.expressions import text_of
from vramlens.live.source.source_stores import Store

_FEWEST_KEYS, _MOST_KEYS = 8, 100_000
"""That are read. With half as many, three keys that are by chance even would be thought to be always;
of more, their list takes megabytes.
"""
_FEWEST_OF_MANY = 100
_NEARLY_ALL = 0.9
"""Of the numbers so far, that are still there where removals take next to nothing. Of a table of what is
under way, as much goes as comes; with half, one that fills for the first time would be none.
"""


def asks_between(container: object, removal: Store, store: Store, holder: object) -> str:
    """``its keys are 2 apart, and line 51 looks for the one 9 before the newest``: of ``x[step] = y`` every
    second step and ``x.pop(step - 9, None)``; empty elsewhere.

    Args:
        store: the statement that fills it.
        holder: the object whose attribute the container is; None where it is none.
    """
    removed_key = removal.key if removal.how == "delete" else next(iter(removal.arguments), None)
    if store.key is None or removal.function is not store.function:
        return ""
    if not isinstance(removed_key, ast.BinOp) or not isinstance(removed_key.op, ast.Sub):
        return ""
    if text_of(removed_key.left) != text_of(store.key):
        return ""
    before = known_number(removed_key.right, store, holder)
    apart = _distance_of(_numbers_in(container))
    if before is None or apart <= 1 or not before % apart:
        return ""
    return (
        f"its keys are {apart:,} apart, and line {removal.line} looks for the one {before:,}"
        " before the newest"
    )


def keeps_nearly_all(container: object) -> bool:
    """Whether a table by number, in whose order it was filled, has nearly all of many numbers so far,
    and some in between are missing.
    """
    keys = _numbers_in(container)
    if len(keys) < _FEWEST_OF_MANY or any(later <= key for key, later in pairwise(keys)):
        return False
    so_far = (keys[-1] - keys[0]) // _distance_of(keys) + 1
    return _NEARLY_ALL * so_far <= len(keys) < so_far


def _numbers_in(container: object) -> Sequence[int]:
    """The keys of a dict, if all are numbers, and not too few or many."""
    if not _FEWEST_KEYS <= (length_of(container) or 0) <= _MOST_KEYS:
        return ()
    keys = [key for key, _ in dict_items(container)]
    return keys if all(type(key) is int for key in keys) else ()


def _distance_of(keys: Sequence[int]) -> int:
    """The number of which all distances between keys are multiples; 0 without keys."""
    return math.gcd(*(later - key for key, later in pairwise(keys)))
