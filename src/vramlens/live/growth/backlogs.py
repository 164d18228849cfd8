"""Stores that are emptied more slowly than they fill.

What is taken from them comes first or in between, so that what is left looks like a list that was
emptied once, or like a full one that gives up an entry for each new one. The sums of what is alive,
taken during the run, tell these apart: a backlog was larger at each sum than at the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from vramlens.live.growth.births import Births
from vramlens.live.growth.piles import SURE, WARM_UP, Pile
from vramlens.live.heap.objects import length_of
from vramlens.live.heap.search import Search

_LEAST_SHARE = 0.5  # of the mean rise, by which each sum must exceed the last
_EXPLAINED = 0.75  # of the rise, that is in the pile
_FARTHEST_AHEAD = 16  # steps
_MOST_EXPLAINED = 1.25  # what left more than the sums rose by did not only grow


def with_backlogs(piles: Iterable[Pile], births: Births) -> list[Pile]:
    """Piles that began late, with those made steady that are what is left of a backlog."""
    rate = _rise_of(births)
    if rate is None:
        return list(piles)
    first_sum = births.sums[0][0]
    return [_as_backlog(pile, rate, first_sum, births.steps) for pile in piles]


def with_complete(search: Search, piles: Iterable[Pile], steps: int) -> list[Pile]:
    """Piles, with those marked that have an entry of each step. They grew to the end, also where
    another thread makes the entries some steps ahead of their use.
    """
    return [_as_complete(pile, search, steps) for pile in piles]


def _as_complete(pile: Pile, search: Search, steps: int) -> Pile:
    pace = pile.pace
    if pace.is_late or steps - pace.last > _FARTHEST_AHEAD:
        return pile
    storages = sum(item.storage is not None for item in pile.items)
    a_step = round(storages / (pace.last - pace.first + 1))
    entries = length_of(search.order[pile.position]) or 0
    fewest, most = a_step * (steps - WARM_UP), a_step * (steps + _FARTHEST_AHEAD)
    if not 0 < fewest <= entries <= most:
        return pile
    return replace(pile, pace=replace(pace, is_steady=True), is_complete=True)


def with_rising(piles: Iterable[Pile], births: Births) -> list[Pile]:
    """Steady piles, with those marked that are what the sums rose by."""
    if not births.is_summed:
        return list(piles)
    return [replace(pile, is_rising=_is_the_rise(pile, births.sums)) for pile in piles]


def steady_rise(sums: Sequence[tuple[int, int]]) -> float | None:
    """Bytes a step by which every sum exceeded the one before; None where one did not.

    Args:
        sums: steps, and the bytes that were alive at their end.
    """
    if len(sums) <= SURE:
        return None
    (first_step, first_bytes), (last_step, last_bytes) = sums[0], sums[-1]
    mean = (last_bytes - first_bytes) / (last_step - first_step)
    rises = [
        (size - size_before) / (step - step_before)
        for (step_before, size_before), (step, size) in pairwise(sums)
    ]
    return mean if mean > 0 and min(rises) >= _LEAST_SHARE * mean else None


def _rise_of(births: Births) -> float | None:
    return steady_rise(births.sums) if births.is_summed else None


def _is_the_rise(pile: Pile, sums: Sequence[tuple[int, int]]) -> bool:
    rate = steady_rise(_sums_apart(sums, 2 * pile.usual_gap))
    if rate is None:
        return False
    pile_rate = pile.bytes / (pile.pace.last - WARM_UP)
    return pile.pace.is_sure and _EXPLAINED * rate <= pile_rate <= _MOST_EXPLAINED * rate


def _sums_apart(sums: Sequence[tuple[int, int]], steps: float) -> list[tuple[int, int]]:
    """Sums that are so many steps apart at least: what comes in bursts rises between them."""
    apart = [*sums[:1]]
    for step, size in sums:
        if step - apart[-1][0] >= steps:
            apart.append((step, size))
    return apart


def _as_backlog(pile: Pile, rate: float, first_sum: int, steps: int) -> Pile:
    """The pile, as a backlog if it began late, holds most of what grew, and was summed before."""
    pace = pile.pace
    was_emptied = pace.is_late and first_sum < pace.first
    if not was_emptied or pile.bytes < _EXPLAINED * rate * (steps - WARM_UP):
        return pile
    steady = replace(pace, is_steady=True, is_late=False, bytes_per_step=round(rate))
    return replace(pile, pace=steady, is_backlog=True)
