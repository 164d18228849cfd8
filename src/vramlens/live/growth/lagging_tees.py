"""The half of an ``itertools.tee`` that lags behind, as the one that keeps what it has not read.

A search comes to each block of entries by the shortest way: to the newest by the half that reads
ahead. What keeps all of them is the half with the most entries to come.
"""

from __future__ import annotations

from collections.abc import Mapping

from vramlens.live.growth.stores import all_lead_to_roots
from vramlens.live.heap.search import Search
from vramlens.live.heap.tees import blocks_from, is_tee, is_tee_block, unread_entries

Parents = Mapping[int, tuple[int, str]]


def parents_by_lagging_tee(search: Search, parents: Parents) -> Parents:
    """The parents, with each block of a tee below the half that has the most of it to read; as they
    are where tees that feed each other would lie below themselves.
    """
    blocks = {
        id(search.order[place]): place for place in parents if is_tee_block(search.order[place])
    }
    if not blocks:
        return parents
    keepers = _keepers_of(search, blocks)
    ways = search.parents(keepers.values())
    apart = {
        block: (tee, "") for block, tee in keepers.items() if block not in search.path(tee, ways)
    }
    by_tee = {**ways, **parents, **apart}
    return by_tee if all_lead_to_roots(by_tee, apart) else parents


def _keepers_of(search: Search, blocks: Mapping[int, int]) -> dict[int, int]:
    """By position of each block, that of the half with the most to read.

    Args:
        blocks: their positions, by identity.
    """
    tees = [place for place, value in enumerate(search.order) if is_tee(value)]
    tees.sort(key=lambda place: -unread_entries(search.order[place]))
    keepers: dict[int, int] = {}
    for place in tees:
        for block in blocks_from(search.order[place]):
            if id(block) in blocks:
                keepers.setdefault(blocks[id(block)], place)
    return keepers
