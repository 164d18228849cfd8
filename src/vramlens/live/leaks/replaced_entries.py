"""Tables whose entries are written anew: ``bank[k] = x`` for a key that is there.

Such an entry is new memory, and no growth: what it replaces went. A dict leaves a key where it is
when its value is replaced, and a list an index: so an entry that is younger than those behind it
was written anew. Whether new keys still come is told by the allocator's counter, which rises by
them alone, and by the keys themselves, where they are all the numbers of a set.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from vramlens.live.counters.step_counters import CounterSeries
from vramlens.live.growth.backlogs import has_slowed
from vramlens.live.growth.piles import Pile
from vramlens.live.growth.stores import Parents
from vramlens.live.heap.ancestors import Ancestors
from vramlens.live.heap.objects import dict_items, elements_of, is_kind
from vramlens.live.heap.search import Search
from vramlens.live.heap.tensors import Storage

_REPLACED = 0.25
"""Of the entries, that are out of the order in which they came: of one in ten the birth may be mistaken,
where there was no time for looking; with half, a table of which a third came again would be growing.
"""
_FEWEST_NUMBERS = 32
"""That are all of a set: of half as many, a few that are handed out in disorder look the same."""
_FULL = 0.75
"""Of a table's deques, that hold as many as they can: the last keys may have had less time. With half,
users who come once would fill the other half of it.
"""
_SPREAD = 0.75
"""Of all numbers, over which each half of the keys goes. Half of those that are given out one after the
other goes over a half, or little more where some wait for others; of a set in no order over nearly all.
"""


def with_replaced(
    search: Search,
    piles: Iterable[Pile],
    parents: Parents,
    counters: Mapping[str, CounterSeries],
    tensors: Mapping[Storage, int],
) -> list[Pile]:
    """Piles, with those marked as full that write their entries anew, and get hardly any new ones,
    or have all that there are.

    Args:
        counters: of each device, what its allocator has handed out.
        tensors: of storages, how many tensors look at them.
    """
    return [
        replace(pile, is_turning=True, is_rising=False)
        if _may_be_full(search, pile, counters, tensors) and _is_replaced(search, pile, parents)
        else pile
        for pile in piles
    ]


def _may_be_full(
    search: Search,
    pile: Pile,
    counters: Mapping[str, CounterSeries],
    tensors: Mapping[Storage, int],
) -> bool:
    """Whether a table may have got all that it will hold."""
    is_complete = _has_every_number(search, pile) or _has_full_deques(search, pile)
    return is_complete or has_slowed(pile, counters, tensors)


def _has_full_deques(search: Search, pile: Pile) -> bool:
    """Whether most of a table's values are deques that hold as many as they can."""
    values = [value for _, value in dict_items(search.order[pile.position])]
    full = sum(
        deque.maxlen.__get__(value) == deque.__len__(value)
        for value in values
        if is_kind(value, deque)
    )
    return len(values) >= _FEWEST_NUMBERS and full >= _FULL * len(values)


def _has_every_number(search: Search, pile: Pile) -> bool:
    """Whether a table's keys are all the numbers from 0 or 1 to one, and came in no order, as those
    of samples, clusters and cells: numbers that are given out come one after the other. Each entry
    must be one tensor, as large as any other: else entries themselves may grow, or their graphs.
    """
    keys = [key for key, _ in dict_items(search.order[pile.position])]
    if len(keys) < _FEWEST_NUMBERS or any(type(key) is not int for key in keys):
        return False
    first = min(keys)
    if first not in (0, 1) or max(keys) - first != len(keys) - 1:
        return False
    sizes = {item.size_bytes for item in pile.items}
    if len(sizes) > 1 or len(pile.items) > len(keys):
        return False
    middle = len(keys) // 2
    halves = keys[:middle], keys[middle:]
    return all(max(half) - min(half) >= _SPREAD * len(keys) for half in halves)


def _is_replaced(search: Search, pile: Pile, parents: Parents) -> bool:
    """Whether many entries are younger than others behind them."""
    births = _births_in_order(search, pile, parents)
    in_order: list[int] = []  # the latest births of the longest series that never goes back
    for born in births:
        place = bisect_right(in_order, born)
        in_order[place : place + 1] = [born]
    return len(births) - len(in_order) >= max(_REPLACED * len(births), 1)


def _births_in_order(search: Search, pile: Pile, parents: Parents) -> list[int]:
    """The births of a table's entries, as they lie in it, without those that are not known."""
    container = search.order[pile.position]
    born_by_entry: dict[int, int] = {}
    entries_around = Ancestors(parents, lambda place: parents[place][0] in (pile.position, -1))
    for item in pile.items:
        if item.storage is None or not item.born:
            continue
        entry = id(search.order[entries_around.nearest(item.position)])
        born_by_entry[entry] = max(item.born, born_by_entry.get(entry, 0))
    entries = [value for _, value in dict_items(container)]
    if is_kind(container, list):
        entries = list(elements_of(container) or ())
    return [born_by_entry[id(entry)] for entry in entries if id(entry) in born_by_entry]
