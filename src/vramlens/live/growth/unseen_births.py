"""What grew in a store while nobody had time to look.

In long runs of short steps births are looked for at some steps only, and some tensors are old before
anybody has seen them. They are in the store anyway: nothing was there before the watch that
was not noted then. So the store's growth is all that it holds from since, over the steps since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vramlens.live.growth.pace import WARM_UP
from vramlens.live.heap.ancestors import Ancestors

if TYPE_CHECKING:
    from vramlens.live.growth.piles import Item, Pile

_WORTH_COUNTING = 0.02
"""Of the seen bytes: less is a few views of what a step left, and the rate of a usual step is exact.
With twice as much, bytes a step would be off by what was not seen.
"""


def with_unseen(
    piles: Sequence[Pile],
    items: Iterable[Item],
    parents: Mapping[int, tuple[int, str]],
    steps: int,
) -> list[Pile]:
    """Piles, with the storages below them whose births nobody saw, and the rate of all of them.

    Args:
        steps: how many steps have ended: what nobody saw may be of the last ones, too.
    """
    unseen: dict[int, list[Item]] = {
        pile.position: [] for pile in piles if pile.pace.is_steady and not pile.is_remade
    }
    piles_around = Ancestors(parents, unseen.__contains__)
    for item in items:
        if item.born is None and item.storage is not None:
            position = piles_around.nearest(item.position)
            if position >= 0:
                unseen[position].append(item)
    return [_with_items(pile, unseen.get(pile.position, []), steps) for pile in piles]


def _with_items(pile: Pile, unseen: Sequence[Item], steps: int) -> Pile:
    size_bytes = sum(item.size_bytes for item in unseen)
    if size_bytes <= _WORTH_COUNTING * pile.bytes:
        return pile
    rate = round((pile.bytes + size_bytes) / (steps - WARM_UP))
    pace = replace(pile.pace, bytes_per_step=max(rate, pile.pace.bytes_per_step))
    return replace(pile, items=[*pile.items, *unseen], pace=pace)
