"""Circles among objects, as indexes."""

from __future__ import annotations

import pytest

from vramlens.leak.leak import LeakOwner
from vramlens.live.heap.cycles import circle_in, components
from vramlens.live.heap.objects import is_own_file
from vramlens.live.holder.leak_fix import fix_of


def test_components_and_their_circles() -> None:
    component, circles = components([[1], [2], [0, 3], [4], [], [5]])
    assert component[0] == component[1] == component[2]
    assert len({component[0], component[3], component[4], component[5]}) == 4
    assert sorted(map(sorted, circles.values())) == [[0, 1, 2], [5]]


def test_a_long_chain_needs_no_recursion() -> None:
    count = 50_000
    _, circles = components([[(place + 1) % count] for place in range(count)])
    assert [len(members) for members in circles.values()] == [count]


@pytest.mark.parametrize(
    ("labels", "circle"),
    [({}, {0, 1}), ({(0, 2): ".grad"}, {0, 2, 3})],
    ids=["the shortest", "through a gradient"],
)
def test_circle(labels: dict[tuple[int, int], str], circle: set[int]) -> None:
    below = [[1, 2], [0], [3], [0]]
    assert set(circle_in(below, labels, [0, 1, 2, 3])) == circle


def test_own_files_are_those_of_the_whole_package() -> None:
    import vramlens.program

    assert vramlens.program.__file__ is not None
    assert is_own_file(vramlens.program.__file__)
    assert not is_own_file(__file__)


def test_a_cycle_may_be_weak_only_where_it_leads_back() -> None:
    back = LeakOwner("Node.parent", "Node", "tree.py", 7)
    forward = LeakOwner("Node.child", "Node", "tree.py", 8)
    library = LeakOwner("Signal", "Signal")
    assert fix_of("cycle", None, back).startswith("make Node.parent a weak reference")
    assert fix_of("cycle", None, forward).startswith("set Node.child to None when done")
    assert fix_of("cycle", None, library).startswith("call gc.collect()")
