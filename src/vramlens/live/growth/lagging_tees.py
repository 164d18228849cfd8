"""The half of an ``itertools.tee`` that lags behind, as the one that keeps what it has not read.

A search comes to each block of entries by the shortest way: to the newest by the half that reads
ahead. What keeps all of them is the half with the most entries to come.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress

from vramlens.live.growth.stores import all_lead_to_roots
from vramlens.live.heap.search import Search
from vramlens.live.heap.tees import TEE, blocks_from, is_tee_block, places_read

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
    if not keepers:
        return parents
    ways = search.parents(keepers.values())
    apart = {
        block: (tee, "") for block, tee in keepers.items() if block not in search.path(tee, ways)
    }
    by_tee = {**ways, **parents, **apart}
    return by_tee if all_lead_to_roots(by_tee, apart) else parents


def _keepers_of(search: Search, blocks: Mapping[int, int]) -> dict[int, int]:
    """By position of each block, that of the half with the most to read; empty where the search's
    time is over before all are walked.

    Args:
        blocks: their positions, by identity.
    """
    is_tee_type = map(id(TEE).__eq__, map(id, map(type, search.order)))
    tees = list(compress(range(len(search.order)), is_tee_type))
    blocks_ahead: dict[int, int] = {}
    to_read: dict[int, tuple[int, int]] = {}
    keepers: dict[int, int] = {}
    for place in tees:
        if search.is_over:
            return {}
        tee = search.order[place]
        to_read[place] = _count_ahead(tee, blocks_ahead), -places_read(tee)
    for place in sorted(tees, key=to_read.__getitem__, reverse=True):
        if search.is_over:
            return {}
        for block in blocks_from(search.order[place]):
            if blocks.get(id(block)) in keepers:
                break  # behind a block that another half keeps, all are that half's
            if id(block) in blocks:
                keepers[blocks[id(block)]] = place
    return keepers


def _count_ahead(tee: object, blocks_ahead: dict[int, int]) -> int:
    """How many blocks a half keeps.

    Args:
        blocks_ahead: of the blocks that were walked so far, by identity; these are added.
    """
    way: list[int] = []
    count = 0
    for block in blocks_from(tee):
        if id(block) in blocks_ahead:
            count = blocks_ahead[id(block)]
            break
        way.append(id(block))
    blocks_ahead.update(zip(reversed(way), range(count + 1, count + len(way) + 1), strict=True))
    return count + len(way)
