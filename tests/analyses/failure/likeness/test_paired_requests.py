"""Requests of two steps in pairs, where one made a request more."""

from __future__ import annotations

import numpy as np
import pytest

from vramlens.analyses.failure.likeness.paired_requests import with_likest_sizes
from vramlens.units import MIB

CALL, OTHER, BARE = 7, 8, -1


def paired(theirs: list[int], ours: list[int], our_kind: int = CALL) -> dict[int, int]:
    """Our places by theirs, of one call's requests, which were paired by their order."""
    count = min(len(theirs), len(ours))
    by_order = np.arange(count), np.arange(count)
    their_places, our_places = with_likest_sizes(
        np.array(theirs) * MIB,
        np.array(ours) * MIB,
        np.full(len(theirs), CALL),
        np.full(len(ours), our_kind),
        by_order,
    )
    return dict(zip(their_places.tolist(), our_places.tolist(), strict=True))


def test_what_only_the_first_step_asked_for_shifts_nothing() -> None:
    """An RNN's dropout state and flat weights; 166 and 258 MiB grew by 2% with the lengths."""
    assert paired([6, 20, 1, 166, 258], [1, 168, 263]) == {2: 0, 3: 1, 4: 2}


def test_what_only_the_failed_step_asked_for_has_no_partner() -> None:
    assert paired([1, 166, 258], [40, 1, 168, 263]) == {0: 1, 1: 2, 2: 3}


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_a_larger_batch_stays_in_order(factor: int) -> None:
    theirs = [10, 40, 10, 160]
    assert paired(theirs, [size * factor for size in theirs]) == {n: n for n in range(4)}


def test_a_length_and_its_square_stay_in_order() -> None:
    assert paired([10, 100, 10], [20, 400, 20]) == {0: 0, 1: 1, 2: 2}


def test_a_backward_pass_without_stacks_stays_as_it_was() -> None:
    assert paired([6, 20, 1, 166], [1, 168, 263], BARE) == {0: 0, 1: 1, 2: 2}


def test_other_calls_stay_as_they_were() -> None:
    sizes = np.array([5, 6, 20, 1, 166]) * MIB
    kinds = np.array([OTHER, CALL, CALL, CALL, CALL])
    ours, our_kinds = np.array([50, 1, 168]) * MIB, np.array([OTHER, CALL, CALL])
    by_order = np.arange(3), np.arange(3)
    their_places, our_places = with_likest_sizes(sizes, ours, kinds, our_kinds, by_order)
    assert sorted(zip(their_places.tolist(), our_places.tolist(), strict=True)) == [
        (0, 0),
        (3, 1),
        (4, 2),
    ]
