"""Stores that are emptied more slowly than they fill.

What is taken from them comes first or in between, so that what is left looks like a list that was
emptied once, or like a full one that gives up an entry for each new one. The sums of what is alive,
taken during the run, tell these apart: a backlog was larger at each sum than at the one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from vramlens.live.counters.host_allocator import may_be_counted
from vramlens.live.counters.step_counters import STRETCHES, CounterSeries
from vramlens.live.growth.accounting import host_bytes_beside, view_bytes
from vramlens.live.growth.births import Births
from vramlens.live.growth.pace import SURE, WARM_UP, Pace
from vramlens.live.growth.piles import Pile
from vramlens.live.heap.objects import length_of
from vramlens.live.heap.search import Search
from vramlens.live.heap.tensors import Storage, device_of

_LEAST_SHARE = 0.5
"""Of the mean rise, by which each sum must exceed the last. With a quarter a buffer that is half
emptied between two sums would pass; with all of it no program whose batches differ in size would.
"""
_EXPLAINED, _MOST_EXPLAINED = 0.75, 1.25
"""Of the rise, that the pile's bytes must be. The sums miss what is older than the collector's two
younger generations, and count what the last step holds: a quarter either way in the programs of the
corpus. With half, another pile's rise would be this one's; with twice as much, what is given back
again would have only grown.
"""
_MOSTLY_TURNING = 0.75
"""Of what came, that went of the same size. Of a full store as much goes, but what came in the first and
last steps; with half, a store that gives up every second entry would be full.
"""
_FEWEST_TURNING = 32
"""Steps watched, that it takes to be full: in the first one gradients go that may be of the same size, a
dozen or two, and with as few steps that would be as much as came.
"""
_LEAST_DISTANCE = 0.05
"""Of the run, before the first sum and between two. What is in use at the moment, and goes, is as much as
many steps leave: it hides their rise in the first sums, which are a step apart. With half, what is in
use in a fortieth of the run would count; with twice as much, five sums would not be left.
"""
_LEVEL = 0.25
"""Of what came meanwhile, within which a counter stays level. With twice as much, a store of which every
second entry stays would be full; with half, what a program uses at the moment would be growth.
"""
_FEWEST_LEVELS = 2
"""Of the four of the second half, that were read: in a run of many short steps some are not."""
_SLOWED = 0.5
"""Of its mean rate, below which a counter's rise in the second half is slower: as of a pace that goes on.
With a quarter, a table that was full after 57% of the run would not be; with three quarters, keys that
come more and more seldom, as new users do, would be over.
"""
_MOST_EXAMPLES = 16
"""Of a pile's memory, where it lies: a process has some thousand mappings."""
_MOST_ASKED = 100
"""Of a pile's items, for whether they are of a graph."""
_FARTHEST_AHEAD = 16
"""Steps by which an entry may be made before its use: the batches of a loader with eight workers and
PyTorch's prefetch factor of 2. With half, eight workers would seem to have stopped; with twice as
many, a store that did stop 30 steps ago would seem to go on.
"""


def with_backlogs(piles: Iterable[Pile], births: Births) -> list[Pile]:
    """Piles that began late, with those made steady that are what is left of a backlog."""
    rate = _rise_of(births)
    if rate is None:
        return list(piles)
    first_sum = births.sums[0][0]
    return [_as_backlog(pile, rate, first_sum, births.steps) for pile in piles]


def with_cut_graphs(
    search: Search,
    piles: Iterable[Pile],
    often_read: Mapping[str, CounterSeries],
    tensors: Mapping[Storage, int],
) -> list[Pile]:
    """Piles that began late, with those made steady whose graphs are so deep that their oldest nodes
    were not looked at, if a counter rose from the start as their newest nodes do.

    Args:
        often_read: by device, a counter that rises with what its allocator has handed out.
        tensors: of storages, how many tensors look at them.
    """
    if not search.has_cut_graphs:
        return list(piles)
    return [
        _as_cut_graph(pile, often_read, tensors) if is_of_cut_graph(search, pile) else pile
        for pile in piles
    ]


def is_of_cut_graph(search: Search, pile: Pile) -> bool:
    """Whether a pile began late, and may be of an autograd graph whose oldest nodes were not looked
    at.
    """
    items = pile.items[:_MOST_ASKED]
    is_late = pile.pace.is_late and search.has_cut_graphs
    return is_late and any(search.in_graph(item.position) for item in items)


def _as_cut_graph(
    pile: Pile, often_read: Mapping[str, CounterSeries], tensors: Mapping[Storage, int]
) -> Pile:
    device = device_of(pile.storages)
    series = often_read.get(device)
    if series is None:
        return pile
    rate = steady_rise(_floors_of(series))
    if rate is None or series.steps[0] >= pile.pace.first:
        return pile
    most_bytes = pile.bytes
    if device == "cpu":
        most_bytes += host_bytes_beside(pile.items, tensors)
    is_the_rise = pile.bytes <= _MOST_EXPLAINED * rate * pile.span
    if not is_the_rise or most_bytes < _EXPLAINED * rate * pile.span:
        return pile
    return replace(pile, pace=replace(pile.pace, is_steady=True, is_late=False), is_cut=True)


def with_complete(search: Search, piles: Iterable[Pile], steps: int) -> list[Pile]:
    """Piles, with those marked that have an entry of each step. They grew to the end, also where
    another thread makes the entries some steps ahead of their use.
    """
    return [_as_complete(pile, search, steps) for pile in piles]


def _as_complete(pile: Pile, search: Search, steps: int) -> Pile:
    """The pile, as complete if its object has as many entries for each step as were made in each.

    A store that has filled has that many only at the very step at which it became full. Entries
    older than the watch can only be those made ahead.
    """
    pace = pile.pace
    entries = length_of(search.order[pile.position]) or 0
    entries_a_step = round(entries / steps)
    if pace.is_late or steps - pace.last > _FARTHEST_AHEAD or not entries_a_step:
        return pile
    births = pile.storage_births
    storages_an_entry = max(round(len(births) / entries), 1)
    most_ahead = entries_a_step * _FARTHEST_AHEAD
    ahead = entries - entries_a_step * steps
    older = entries - len(births) / storages_an_entry
    has_room = 0 <= ahead <= most_ahead and 0 <= older <= most_ahead
    if not has_room or not _are_at_pace(births, pace, entries_a_step * storages_an_entry, steps):
        return pile
    return replace(pile, pace=replace(pace, is_steady=True), is_complete=True)


def _are_at_pace(births: Iterable[int], pace: Pace, a_step: int, steps: int) -> bool:
    """Whether as many were born as in each step, but for one; those of the steps since the last
    birth were made ahead of them.
    """
    in_pace = sum(pace.first <= born <= pace.last for born in births)
    fewest_steps, most_steps = pace.last - pace.first, steps - pace.first + 2
    return a_step * fewest_steps <= in_pace <= a_step * most_steps


def with_rising(
    piles: Iterable[Pile],
    births: Births,
    counters: Mapping[str, CounterSeries],
    often_read: Mapping[str, CounterSeries],
    tensors: Mapping[Storage, int],
) -> list[Pile]:
    """Steady piles, with those marked that are what the sums or a counter rose by, and those that may
    be full stores: as much went as came, of what is older than the watch or by a counter.

    Args:
        counters: of each device, what its allocator has handed out.
        often_read: by device, a counter that rises with that.
        tensors: of storages, how many tensors look at them.
    """
    every = list(piles)
    turning_sizes = _turning_sizes(every, births)
    return [
        replace(pile, is_turning=True)
        if _is_turning(pile, turning_sizes) or _is_level(pile, counters, tensors)
        else replace(pile, is_rising=_is_rising(pile, births, often_read, tensors))
        for pile in every
    ]


def _is_rising(
    pile: Pile,
    births: Births,
    often_read: Mapping[str, CounterSeries],
    tensors: Mapping[Storage, int],
) -> bool:
    if births.is_summed and _is_the_rise(pile, births.sums):
        return True
    storages = pile.storages
    device = device_of(storages)
    series = often_read.get(device)
    if series is None:
        return False
    in_views = view_bytes(storages, tensors) if device == "cpu" else 0
    return _is_the_rise(pile, _floors_of(series), in_views)


def _is_level(
    pile: Pile, counters: Mapping[str, CounterSeries], tensors: Mapping[Storage, int]
) -> bool:
    """Whether what an allocator had handed out stayed level while a pile came: as much went. In the
    first steps and the last, a program makes and drops other things.
    """
    device = device_of(pile.storages)
    series = counters.get(device)
    if series is None or pile.span < STRETCHES or _is_of_nodes(pile):
        return False
    stretch = pile.span / STRETCHES
    low, high = pile.pace.first + 2 * stretch, pile.pace.last - stretch
    levels = list(_levels_of(series, low, high, stretch).values())
    came_bytes = sum(item.size_bytes for item in pile.items if _is_between(item.born, low, high))
    if len(levels) < STRETCHES - 3 or max(levels) - min(levels) >= _LEVEL * came_bytes:
        return False
    return _is_counted(pile, device, min(levels), tensors)


def has_slowed(
    pile: Pile, counters: Mapping[str, CounterSeries], tensors: Mapping[Storage, int]
) -> bool:
    """Whether what an allocator had handed out was nearly level in the second half of a pile, which
    would have risen by its rate.
    """
    device = device_of(pile.storages)
    series = counters.get(device)
    if series is None or pile.span < _FEWEST_TURNING:
        return False
    stretch = pile.span / STRETCHES
    middle, end = pile.pace.first + pile.span / 2, pile.pace.last + 1
    by_part = _levels_of(series, middle, end, stretch)
    if len(by_part) < _FEWEST_LEVELS:
        return False
    levels = list(by_part.values())
    expected_rise = pile.bytes * (max(by_part) - min(by_part)) / STRETCHES
    is_slower = max(levels) - min(levels) < _SLOWED * expected_rise
    return is_slower and _is_counted(pile, device, min(levels), tensors)


def _levels_of(series: CounterSeries, low: float, high: float, stretch: float) -> dict[int, int]:
    """The least that a counter read in each stretch between two steps: beside what is in use at the
    moment. A stretch without a reading has none.
    """
    levels: dict[int, int] = {}
    for step, value in zip(series.steps, series.values, strict=True):
        if low <= step < high:
            part = int((step - low) / stretch)
            levels[part] = min(value, levels.get(part, value))
    return levels


def _is_counted(
    pile: Pile, device: str, counted_bytes: int, tensors: Mapping[Storage, int]
) -> bool:
    """Whether a counter may have a pile: another allocator's memory, a file's and another process's
    are on none.
    """
    alive_bytes = sum(storage.size_bytes for storage in tensors if storage.device == device)
    if counted_bytes < alive_bytes:
        return False
    storages = pile.storages
    apart = max(1, len(storages) // _MOST_EXAMPLES)
    examples = [storage.address for storage in storages[::apart]]
    return device != "cpu" or may_be_counted(examples)


def _is_between(step: int | None, low: float, high: float) -> bool:
    return step is not None and low <= step < high


def _floors_of(series: CounterSeries) -> list[tuple[int, int]]:
    """What a counter never fell below again, at some steps up to the latest. Sums have no time in
    runs of many short steps, and miss what is old.
    """
    floors = list(accumulate(reversed(series.values), min))[::-1]
    distance = (series.steps[-1] - series.steps[0]) / STRETCHES
    apart = [(series.steps[-1], floors[-1])]
    for step, floor in zip(reversed(series.steps), reversed(floors), strict=True):
        if apart[-1][0] - step >= distance:
            apart.append((step, floor))
    return apart[::-1]


def _is_turning(pile: Pile, turning_sizes: set[int]) -> bool:
    if pile.span < _FEWEST_TURNING or _is_of_nodes(pile):
        return False
    sizes = _sizes_of(pile)
    turning_bytes = sum(size * count for size, count in sizes.items() if size in turning_sizes)
    came_bytes = sum(size * count for size, count in sizes.items())
    return turning_bytes > _MOSTLY_TURNING * came_bytes


def _is_of_nodes(pile: Pile) -> bool:
    """Whether most steps left autograd nodes alone, whose backward pass has freed their tensors: of the
    few bytes beside them nothing follows.
    """
    return 2 * len(set(pile.storage_births)) < pile.pace.steps


def _turning_sizes(piles: Sequence[Pile], births: Births) -> set[int]:
    """The sizes of which about as many storages from before the watch went as came to all piles;
    none where no pile is old enough, as to look what went reads the whole heap.
    """
    if all(pile.span < _FEWEST_TURNING for pile in piles):
        return set()
    came: Counter[int] = Counter()
    for pile in piles:
        came.update(_sizes_of(pile))
    gone = births.older_gone()
    return {size for size, count in came.items() if gone[size] >= _MOSTLY_TURNING * count}


def _sizes_of(pile: Pile) -> Counter[int]:
    """How many storages of each size came after the first step, which finds what was there, too."""
    return Counter(
        item.size_bytes
        for item in pile.items
        if item.storage is not None and item.born is not None and item.born > WARM_UP
    )


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


def _is_the_rise(pile: Pile, sums: Sequence[tuple[int, int]], in_views: int = 0) -> bool:
    least_distance = sums[-1][0] * _LEAST_DISTANCE
    later_sums = [(step, size) for step, size in sums if step >= least_distance]
    rate = steady_rise(_sums_apart(later_sums, max(2 * pile.usual_gap, least_distance)))
    if rate is None:
        return False
    pile_rate = (pile.bytes + in_views) / (pile.pace.last - WARM_UP)
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
