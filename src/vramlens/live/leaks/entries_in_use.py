"""Stores whose entries the program goes on writing to: a prototype of each class, moved a little by
each batch, is made when its class is first seen.

PyTorch counts the writes to a tensor. Where an entry is used only for a while, as that of a request
is, the counts of older entries are alike; where all are in use, older entries have larger counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from statistics import median

from vramlens.live.growth.piles import Pile
from vramlens.live.heap.search import Search

_FEWEST_BIRTHS = 6
"""Different steps with births: two for each third. With three, one class that is rare decides."""
_MORE_WRITES = 1.25
"""Times as many writes to the oldest third of the entries as to the next. Where each step writes to all
that are there, it is 5/3; where each entry is used for half of the watch, it is 1.
"""


def with_entries_in_use(search: Search, piles: Iterable[Pile]) -> list[Pile]:
    """Piles, with those marked whose older entries are still written to."""
    return [replace(pile, is_in_use=_is_in_use(search, pile)) for pile in piles]


def _is_in_use(search: Search, pile: Pile) -> bool:
    writes_by_birth: dict[int, int] = {}
    for item in pile.items:
        if item.storage is not None and item.born:
            writes = search.torch.writes_to(search.order[item.position])
            writes_by_birth[item.born] = max(writes, writes_by_birth.get(item.born, 0))
    if len(writes_by_birth) < _FEWEST_BIRTHS:
        return False
    writes_in_order = [writes_by_birth[born] for born in sorted(writes_by_birth)]
    third = len(writes_in_order) // 3
    oldest, older = median(writes_in_order[:third]), median(writes_in_order[third : 2 * third])
    return older > 0 and oldest >= _MORE_WRITES * older
