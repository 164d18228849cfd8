"""Rationed looks: the verdict on growth is the same at whichever step one asks."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from vramlens.live.growth.looks import Looks
from vramlens.live.growth.pace import Pace, pace_of

DENSE = [*range(1, 540), 614, 769, *range(770, 786), 989, 1293]
"""Looks as one program had them: each step until the first ration was spent, then rarely."""


def _pace(born: Iterable[int], looked: list[int], steps: int) -> Pace | None:
    """The pace of births as looks see them that were made until a step."""
    looks = Looks([step for step in looked if step <= steps])
    seen: dict[int, int] = {}
    for step in born:
        if step <= steps:
            look = next((look for look in looks.steps if look >= step), steps + 1)
            seen[look] = seen.get(look, 0) + 100
    return pace_of(seen, steps, looks)


@pytest.mark.parametrize("every", [1, 3, 18])
@pytest.mark.parametrize("looked", [DENSE, [*range(1, 100), *range(130, 1300, 90)], [5, 400, 1290]])
def test_steady_growth_is_steady_at_every_moment(looked: list[int], every: int) -> None:
    for steps in range(every * 5 + 1, 1294, 7):
        pace = _pace(range(2, 1294, every), looked, steps)
        is_enough = sum(1 for look in looked if look <= steps) >= 100
        assert pace is not None or not is_enough
        assert pace is None or pace.is_steady, steps


@pytest.mark.parametrize(
    ("last", "has_just_ended"),
    [(40, False), (70, False), (85, True), (95, True), (100, False)],
)
def test_growth_through_most_of_a_run_that_goes_on_has_just_ended(
    last: int, has_just_ended: bool
) -> None:
    pace = _pace(range(2, last + 1), [*range(1, 101)], 100)
    assert pace is not None
    assert pace.has_just_ended is has_just_ended
    assert pace.is_steady is (last == 100)


def test_a_few_births_have_not_just_ended() -> None:
    """Fewer than 16 are also what one part of a short program makes for the next."""
    pace = _pace(range(2, 14), [*range(1, 17)], 16)
    assert pace is not None
    assert not pace.has_just_ended


def test_what_stopped_is_not_steady_however_rare_looks_are() -> None:
    for filled in (20, 100, 300, 500):
        for steps in (600, 770, 800, 988, 989, 1292, 1293):
            pace = _pace(range(2, filled), DENSE, steps)
            assert pace is not None
            assert not pace.is_steady, (filled, steps)


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("looked", [60, 80, 95])
def test_the_bytes_of_steps_without_a_look_say_when_it_stopped(looked: int, every: int) -> None:
    for last in range(looked, 101):
        births = range(2, last + 1, every)
        pace = _pace(births, [*range(1, looked + 1)], 100)
        assert pace is not None
        assert pace.is_steady == (99 - births[-1] < 2 * every), last
        if not pace.is_steady:
            assert abs(pace.last - births[-1]) < every
            assert pace.has_just_ended == (pace.last >= 80)


def test_what_slows_down_is_not_steady() -> None:
    births = [2**power for power in range(1, 11)]
    pace = _pace(births, DENSE, 1293)
    assert pace is None or not pace.is_steady


def test_births_that_nobody_saw_do_not_make_a_run_end() -> None:
    looks = Looks([*range(1, 40), 60], blind_step=90)
    seen = dict.fromkeys(range(2, 40), 100) | {60: 2000}
    steady = pace_of(seen, 100, looks)
    assert steady is not None
    assert steady.is_steady
    ended = pace_of(seen, 100, Looks(looks.steps))
    assert ended is not None
    assert not ended.is_steady


@pytest.mark.parametrize(
    ("unseen", "is_steady"),
    [
        (66, True),  # as many as every fourth step of all that is left has
        (44, False),  # it has ended where the last was seen
        (10, False),
    ],
)
def test_births_that_nobody_saw_fill_the_pause_between_looks(
    unseen: int, *, is_steady: bool
) -> None:
    """Every fourth step leaves something, and a pause of the looks is none of the births."""
    born = [6, 10, 14, 18, 20, 26, 29, 32, 50, 54, 58, 60, 236]
    looks = Looks([*range(1, 64), *range(64, 320, 20), 314])
    pace = pace_of(dict.fromkeys(born, 100), 319, looks, unseen * 100)
    assert pace is not None
    assert pace.is_steady == is_steady


def test_random_looks() -> None:
    chance = random.Random(0)
    for _ in range(50):
        looked = sorted({*range(1, 61), *chance.sample(range(61, 800), 25)})
        for steps in chance.sample(range(120, 800), 5):
            pace = _pace(range(3, 800, 4), looked, steps)
            assert pace is not None
            assert pace.is_steady, (looked, steps)


def test_a_birth_may_be_of_any_step_since_the_look_before() -> None:
    """A sentence about the first of them names the first step that it may be of."""
    looks = Looks([*range(1, 50), 61, 73, 85, 97])
    pace = pace_of({61: 100, 73: 100, 85: 100, 97: 100}, 100, looks)
    assert pace is not None
    assert (pace.first, pace.earliest) == (61, 50)
    seen = pace_of({61: 100, 73: 100, 85: 100}, 100, Looks.at_every_step(100))
    assert seen is not None
    assert seen.earliest == seen.first


@pytest.mark.parametrize(("every", "left"), [(1, 98), (2, 49)])
def test_steps_that_no_look_came_after_are_counted_by_their_bytes(every: int, left: int) -> None:
    pace = _pace(range(2, 101, every), [*range(1, 50), 61, 73, 85, 97, 99], 100)
    assert pace is not None
    assert pace.steps < left
    assert pace.leaving_steps == left


def test_looks_that_are_steps_apart_count_no_steps() -> None:
    pace = _pace(range(2, 101, 3), range(1, 101, 9), 101)
    assert pace is not None
    assert pace.leaving_steps is None


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("apart", [0, 1])
def test_what_a_graph_dates_and_what_a_look_finds_are_of_the_same_steps(
    every: int, apart: int
) -> None:
    """A loss tells its step; the data that is kept beside it, maybe a step later, tells the look."""
    looks = Looks([*range(1, 50), *range(50, 301, 4)])
    seen: dict[int, int] = {}
    for step in range(3, 300, every):
        found = looks.finder(min(step + apart, 300)) or 300
        seen[step] = seen.get(step, 0) + 4
        seen[found] = seen.get(found, 0) + 8000
    pace = pace_of(seen, 301, looks)
    assert pace is not None
    steps = len(range(3, 300, every))
    assert pace.leaving_steps == pytest.approx(steps, abs=3)
    assert pace.bytes_per_step == pytest.approx(8004 / every, rel=0.03)


@pytest.mark.parametrize(
    ("unseen_bytes", "is_steady"), [(0, False), (40 * 100, False), (300 * 100, True)]
)
def test_what_nobody_saw_being_born_came_too(unseen_bytes: int, *, is_steady: bool) -> None:
    """Later looks are rare, and find little where the collector came before them: a store that
    goes on holds the rest, unlike a cache that fills up.
    """
    looks = Looks([*range(1, 71), *range(78, 560, 8)], blind_step=560)
    seen = dict.fromkeys([*range(2, 71), *range(78, 560, 32)], 100)
    pace = pace_of(seen, 560, looks, unseen_bytes)
    assert pace is not None
    assert pace.is_steady == is_steady
