"""Bytes of what nobody saw being born."""

from __future__ import annotations

from vramlens.live.growth.pace import Pace
from vramlens.live.growth.piles import Item, Pile
from vramlens.live.growth.unseen_births import with_unseen
from vramlens.live.heap.tensors import Storage

PACE = Pace(80, True, False, 2, 101, 0.8, 800)
PARENTS = {0: (-1, ""), 1: (0, ""), 2: (-1, "")}


def _items(count: int, position: int, born: int | None) -> list[Item]:
    return [
        Item(position, 1000, born and born + number, Storage("cpu", number, 1000))
        for number in range(count)
    ]


def test_what_a_store_holds_counts_though_its_birth_was_not_seen() -> None:
    seen = _items(80, 1, 2)
    unseen, elsewhere = _items(20, 1, None), _items(20, 2, None)
    (pile,) = with_unseen([Pile(0, seen, PACE)], [*seen, *unseen, *elsewhere], PARENTS, 101)
    assert pile.bytes == 100_000
    assert pile.pace.bytes_per_step == 1000


def test_a_few_views_change_nothing() -> None:
    seen = _items(80, 1, 2)
    pile = Pile(0, seen, PACE)
    assert with_unseen([pile], [*seen, *_items(1, 1, None)], PARENTS, 101) == [pile]


def test_what_nobody_saw_may_be_of_the_steps_after_the_last_look() -> None:
    seen, unseen = _items(80, 1, 2), _items(100, 1, None)
    (pile,) = with_unseen([Pile(0, seen, PACE)], [*seen, *unseen], PARENTS, 181)
    assert pile.pace.bytes_per_step == 1000
