"""What the beginnings of steps tell: growth at each step, in stairs, or none."""

from __future__ import annotations

import pytest

from vramlens.analyses.failure.cause import is_climbing, is_growing, may_be_growing
from vramlens.units import MIB

CAPACITY = 1000 * MIB


@pytest.mark.parametrize(
    ("starts", "growing"),
    [
        ([0, 300, 320, 340, 360, 380], True),
        ([0, 300, 300, 300, 300, 380, 380, 380, 380, 460], True),
        ([0, 300, 301, 302, 303, 304], False),
        ([0, 300, 300, 300, 300, 300], False),
        ([0, 300, 340, 310, 350, 305, 360], False),
        ([0, 300, 300, 420, 460, 310, 320], False),
        ([0, 100, 200, 300], False),
    ],
    ids=["each step", "stairs", "too little", "none", "sizes differ", "given back", "too few"],
)
def test_steps_that_begin_with_more_and_more_grow(starts: list[int], growing: bool) -> None:
    assert is_growing([start * MIB for start in starts], CAPACITY) == growing


@pytest.mark.parametrize(
    ("starts", "growing"),
    [
        ([0, 300, 440, 590], True),
        ([0, 300, 440], False),
        ([0, 300, 440, 440], False),
        ([0, 300, 305, 310], False),
    ],
    ids=["twice", "once", "it stopped", "too little"],
)
def test_of_few_steps_growth_is_a_doubt(starts: list[int], growing: bool) -> None:
    assert may_be_growing([start * MIB for start in starts], CAPACITY) == growing


@pytest.mark.parametrize(
    ("own", "climbs"),
    [
        ((900, 77, 77, 116, 116, 155), True),  # in stairs
        ((900, 10, 20, 30, 40), True),
        ((900, 77, 77, 77, 77, 300), False),  # a spike
        ((900, 116, 80, 155, 77, 116, 160), False),  # mixed lengths
        ((900, 77, 116), False),  # too few
        ((77, 77, 77, 77, 77, 77), False),
    ],
)
def test_steps_climb_where_more_than_one_needed_more_than_all_before(
    own: tuple[int, ...], climbs: bool
) -> None:
    assert is_climbing(own) == climbs
