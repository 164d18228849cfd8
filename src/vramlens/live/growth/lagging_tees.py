"""The half of an ``itertools.tee`` that lags behind, as the one that keeps what it has not read.

A search comes to each block of entries by the shortest way: to the newest by the half that reads
ahead. What keeps all of them is the half with the most entries to come.
"""

from __future__ import annotations

from collections.abc import Mapping

from vramlens.live.heap.search import Search
from vramlens.live.heap.tees import blocks_from, is_tee, is_tee_block, unread_entries

Parents = Mapping[int, tuple[int, str]]


def parents_by_lagging_tee(search: Search, parents: Parents) -> Parents:
    """The parents, with each block of a tee below the half that has the most of it to read."""
    blocks = {
        id(search.order[place]): place for place in parents if is_tee_block(search.order[place])
    }
    if not blocks:
        return parents
    places = [place for place, value in enumerate(search.order) if is_tee(value)]
    places.sort(key=lambda place: -unread_entries(search.order[place]))
    keeper_of: dict[int, int] = {}
    for place in places:
        for block in blocks_from(search.order[place]):
            if id(block) in blocks:
                keeper_of.setdefault(blocks[id(block)], place)
    ways = search.parents(keeper_of.values())
    return {
        **ways,
        **parents,
        **{
            block: (tee, "")
            for block, tee in keeper_of.items()
            if block not in search.path(tee, ways)
        },
    }
