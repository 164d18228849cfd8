"""The nearest ancestor, asked for every link of a long chain."""

from __future__ import annotations

from vramlens.live.heap.ancestors import Ancestors

PARENTS = {0: (-1, ""), 1: (0, ""), 2: (1, ""), 3: (2, ""), 4: (-1, ""), 5: (4, "")}


def test_the_nearest_is_the_object_itself_or_one_around_it() -> None:
    ancestors = Ancestors(PARENTS, {1, 3}.__contains__)
    assert [ancestors.nearest(place) for place in (3, 2, 1, 0, 5)] == [3, 1, 1, -1, -1]


def test_each_link_is_passed_once() -> None:
    links = 20_000
    asked: list[int] = []

    def is_wanted(place: int) -> bool:
        asked.append(place)
        return place == 0

    ancestors = Ancestors({place: (place - 1, "") for place in range(links)}, is_wanted)
    assert {ancestors.nearest(place) for place in reversed(range(links))} == {0}
    assert len(asked) == links
