"""What grew: live bytes by the step that they were born in, gathered at the object where steps pile
up.

A leak is what *every* stretch of the run left behind and nobody gave back: births from the first
steps after warm-up to the last, at a steady pace. What stopped is a cache that has filled; what has
no old births is emptied now and then (an epoch's metrics, a ring) or has only just begun; what all
came at once is state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from vramlens.live.growth.births import BEFORE, Births
from vramlens.live.growth.looks import Looks
from vramlens.live.heap.search import Search
from vramlens.live.heap.tensors import Storage
from vramlens.live.leaks.leak_report import Gone

WARM_UP = 1  # steps that make optimizer state, gradients and caches
FEWEST = 3  # births in so many different steps are needed to speak of growth
SURE = 4  # and in so many to be sure
_SHARE_FILLED, _SHARE_SPREAD = 0.8, 0.5
_ALIKE = 0.02
_FEWEST_BURSTS = 2
_LONGEST_PROGRESSION = 512
_LEAST_PROGRESSION = 4


@dataclass(frozen=True, slots=True)
class Item:
    """Something that is alive: a storage, or an autograd node (of no bytes).

    Attributes:
        position: where the search reached it.
        size_bytes: of the storage, each once; 0 for a node.
        born: the step; BEFORE; None where it cannot be told.
        storage: None for a node.
        is_seen: whether its birth was seen; else it is that of what holds it.
    """

    position: int
    size_bytes: int
    born: int | None
    storage: Storage | None
    is_seen: bool = True


@dataclass(frozen=True, slots=True)
class Pace:
    """How births are spread over the steps.

    Attributes:
        steps: different steps with births after warm-up, without the one that has just ended.
        is_steady: from early on, to the end, and not slower in the second half.
        is_late: there are births to the end, but none from early on.
        first, last: the first and last of these steps.
        filled: the share of all steps that they are.
        bytes_per_step: bytes that a step adds.
    """

    steps: int
    is_steady: bool
    is_late: bool
    first: int
    last: int
    filled: float
    bytes_per_step: int

    @property
    def is_sure(self) -> bool:
        return self.is_steady and self.steps >= SURE


@dataclass(slots=True)
class Pile:
    """Items that one object keeps, directly or below it.

    Attributes:
        position: the object, in the search's order.
        items: what was born while it was watched.
        pace: how they came.
        older_bytes: what the same object keeps from before the watch.
        is_remade: of a tensor that grows by being made anew: sizes are in ``pace`` only.
        is_spread: of one variable of a function that runs many times at once (in threads, in
            itself): the object is what one of them holds.
    """

    position: int
    items: list[Item]
    pace: Pace
    is_remade: bool = False
    is_spread: bool = False

    @property
    def bytes(self) -> int:
        return sum(item.size_bytes for item in self.items)


@dataclass(slots=True)
class _Node:
    """An object on the way from a root to items."""

    below: list[int] = field(default_factory=list)
    direct_items: list[Item] = field(default_factory=list)
    bytes_by_step: dict[int, int] = field(default_factory=dict)
    pace: Pace | None = None

    @property
    def is_steady(self) -> bool:
        return self.pace is not None and self.pace.is_steady


def live_items(
    search: Search, births: Births, positions: Mapping[int, tuple[int, str]]
) -> list[Item]:
    """All live storages and autograd nodes that a search reached.

    Args:
        positions: the parents of everything in it (``Search.parents``).
    """
    torch, order = search.torch, search.order
    items = []
    for storage, position in search.storages.items():
        parent, label = positions.get(position, (-1, ""))
        saved_by = order[parent] if label.startswith("._saved") else None
        born = births.born(storage, order[position], saved_by)
        is_seen = born is not None
        if not is_seen and label == ".grad" and parent in search.storage_at:
            # A gradient that Python never looked at; it is as old as what was made to get it, or a
            # little younger.
            born = births.born(search.storage_at[parent], order[parent]) or None
        items.append(Item(position, storage.size_bytes, born, storage, is_seen))
    for low, high in search.graph_from:
        for position in range(low, high):
            if torch.is_node(order[position]):
                born = births.step_of(order[position])
                if born is not None and born > 0:
                    items.append(Item(position, 0, born, None))
    return items


def piles(
    search: Search,
    items: Iterable[Item],
    parents: Mapping[int, tuple[int, str]],
    steps: int,
    looks: Looks,
) -> tuple[list[Pile], list[Pile]]:
    """The objects at which steps pile up; and those at which they did, or may: late or ended.

    Args:
        steps: how many steps have ended.
        looks: at births.
    """
    nodes = _nodes_on_the_way(search, items, parents)
    tops = [place for place in nodes if parents[place][0] < 0]
    _sum_upwards(nodes, tops, steps, looks)
    growing, tops = _spread(search, nodes, tops, steps, looks)
    doubtful: list[Pile] = []
    while tops:
        position = tops.pop()
        node = nodes[position]
        steady = [child for child in node.below if nodes[child].is_steady]
        unsteady = [child for child in node.below if not nodes[child].is_steady]
        tops += steady
        direct = [*node.direct_items]
        for child in unsteady:
            direct += _all_below(nodes, child)
        pace = pace_of(_by_step(direct), steps, looks) if direct else None
        if pace is None or (not steady and node.pace is None):
            continue
        if pace.is_steady:
            growing.append(Pile(position, direct, pace))
        elif not steady or pace.steps >= FEWEST:
            # Perhaps one of them below: a list that began late, a ring.
            inner = [child for child in unsteady if nodes[child].pace is not None]
            tops += inner
            if not inner:
                doubtful.append(Pile(position, direct, pace))
    return growing, doubtful


def _nodes_on_the_way(
    search: Search, items: Iterable[Item], parents: Mapping[int, tuple[int, str]]
) -> dict[int, _Node]:
    """Every object on the way from a root to what was born while it was watched, by position."""
    nodes: dict[int, _Node] = {}
    for item in items:
        if item.born is not None and item.born > BEFORE:
            nodes.setdefault(_entry(search, item.position, parents), _Node()).direct_items.append(
                item
            )
    waiting = sorted(nodes, reverse=True)
    on_the_way = set(waiting)
    while waiting:
        above = []
        for position in waiting:
            parent = parents[position][0]
            if parent < 0:
                continue
            nodes.setdefault(parent, _Node()).below.append(position)
            if parent not in on_the_way:
                on_the_way.add(parent)
                above.append(parent)
        waiting = above
    return nodes


def _sum_upwards(nodes: dict[int, _Node], tops: list[int], steps: int, looks: Looks) -> None:
    """Gives every object the bytes below it, by step of birth, and their pace."""
    downwards = list(tops)
    for position in downwards:
        downwards += nodes[position].below
    for position in reversed(downwards):
        node = nodes[position]
        if len(node.below) == 1 and not node.direct_items:  # it only leads there
            child = nodes[node.below[0]]
            node.bytes_by_step, node.pace = child.bytes_by_step, child.pace
            continue
        total = Counter(_by_step(node.direct_items))
        for place in node.below:
            total.update(nodes[place].bytes_by_step)
        node.bytes_by_step = dict(total)
        node.pace = pace_of(node.bytes_by_step, steps, looks)


def _spread(
    search: Search, nodes: Mapping[int, _Node], tops: list[int], steps: int, looks: Looks
) -> tuple[list[Pile], list[int]]:
    """Piles of one variable of a function that runs many times at once; and the tops that are
    not part of any.
    """
    by_variable: dict[Any, list[int]] = {}
    for position in tops:
        root = search.roots.get(position)
        if root is not None and root.kind == "variable" and not nodes[position].is_steady:
            by_variable.setdefault((root.code, root.name), []).append(position)
    spread: list[Pile] = []
    taken: set[int] = set()
    for positions in by_variable.values():
        if len(positions) < FEWEST:
            continue
        items = [item for position in positions for item in _all_below(nodes, position)]
        pace = pace_of(_by_step(items), steps, looks)
        if pace is not None and pace.is_steady and pace.filled >= _SHARE_SPREAD:
            spread.append(Pile(positions[0], items, pace, is_spread=True))
            taken.update(positions)
    return spread, [position for position in tops if position not in taken]


def pace_of(bytes_by_step: Mapping[int, int], steps: int, looks: Looks) -> Pace | None:
    """How births are spread; None where too few different steps have any.

    Args:
        bytes_by_step: bytes that were born, by step.
        steps: how many steps have ended; what the last one left may be in use still.
        looks: at births.
    """
    end = looks.judged_until(bytes_by_step, steps)
    born = sorted(step for step in bytes_by_step if WARM_UP < step <= end)
    if len(born) < FEWEST:
        return None
    window = end - WARM_UP
    gap = median(_gaps(born))
    goes_to_the_end = end - born[-1] <= 1.5 * gap
    is_from_early = born[0] - WARM_UP - 1 <= max(gap, window / 3)
    middle = (looks.number(WARM_UP + 1) + looks.number(end) + 1) / 2
    first_half = sum(1 for step in born if looks.number(step) < middle)
    goes_on = 2 * (len(born) - first_half) >= first_half
    filled = len(born) / window
    return Pace(
        steps=len(born),
        is_steady=goes_to_the_end and is_from_early and goes_on,
        is_late=goes_to_the_end and not is_from_early,
        first=born[0],
        last=born[-1],
        filled=filled,
        bytes_per_step=round(_rate(born, [bytes_by_step[step] for step in born], filled)),
    )


def _gaps(steps: list[int]) -> list[int]:
    return [after - before for before, after in pairwise(steps)]


def _rate(born: list[int], sums: list[int], filled: float) -> float:
    """Bytes that a step adds on the average."""
    return _even_rate(born, sums) if filled >= _SHARE_FILLED else _burst_rate(born, sums)


def _even_rate(born: list[int], sums: list[int]) -> float:
    """Bytes a step, where nearly every step adds some."""
    usual = median(sums)
    mean_bytes = sum(sums) / (born[-1] - born[0] + 1)
    alike = sum(1 for size in sums if abs(size - usual) <= _ALIKE * usual)
    if 2 * alike <= len(sums):
        return mean_bytes
    # Where most agree, what one step seems to have made more is another's, or was made once;
    # and what seems to be missing was not seen, unless it is missing at even distances.
    absent = sorted(set(range(born[0], born[-1])).difference(born))
    is_missing_evenly = len(absent) > 2 and len(set(_gaps(absent))) == 1
    return min(usual, mean_bytes) if is_missing_evenly else usual


def _burst_rate(born: list[int], sums: list[int]) -> float:
    """Bytes a step, where only some steps add any.

    Where births were not looked for at each step's end, one look finds those of several: all since
    the look before. What comes in bursts (each epoch's validation) is measured from the begin of
    one to the begin of another.
    """
    gaps = _gaps(born)
    usual_gap = median(gaps)
    starts = [0, *(place for place, gap in enumerate(gaps, 1) if gap > usual_gap)]
    last = starts[-1] if len(starts) > _FEWEST_BURSTS else len(born) - 1
    return sum(sums[1 : last + 1]) / (born[last] - born[0])


def remade_larger(search: Search, items: Iterable[Item], births: Births) -> list[Pile]:
    """Tensors that each step makes anew, a constant larger than the last: ``all =
    torch.cat((all, new))``.
    """
    steps = births.steps
    # A program may end in the middle of a step: what that one has left counts, too.
    looked = sorted((step for step in births.sizes if 0 < step <= steps + 1), reverse=True)
    if len(looked) < _LEAST_PROGRESSION:
        return []
    sizes = {step: set(births.sizes[step]) for step in looked}
    storages = [item for item in items if item.storage is not None]
    alive = {(item.size_bytes, item.born) for item in storages}
    remade = []
    for item in storages:
        if item.born is None or item.born < steps - 1:
            continue
        newest = next((step for step in looked if item.size_bytes in sizes[step]), 0)
        if newest < max(steps - 1, 1):
            continue
        added = _progression(item.size_bytes, [step for step in looked if step <= newest], sizes)
        if added is None or _keeps_smaller(item.size_bytes, newest, added, alive):
            continue
        by_step = dict.fromkeys(range(1, newest + 1), added)
        pace = pace_of(by_step, steps, births.looks)
        if pace is not None:
            remade.append(Pile(item.position, [item], pace, is_remade=True))
    return remade


def _keeps_smaller(size: int, newest: int, added: int, alive: set[tuple[int, int | None]]) -> bool:
    """Whether the smaller ones of a progression are still there: it is one of many."""
    older = range(max(newest - _LONGEST_PROGRESSION, 1), newest)
    still_alive = sum(1 for step in older if (size - added * (newest - step), step) in alive)
    return 2 * still_alive >= len(older)


def gone_growth(items: Iterable[Item], births: Births) -> Gone | None:
    """The growth that was steady when bytes were summed last, if not even half of it is alive now."""
    step, bytes_by_step = births.latest_sum
    pace = pace_of(bytes_by_step, step, births.looks)
    if pace is None or not pace.is_steady or not births.is_summed:
        return None
    candidates = (item for item in items if item.born is None or BEFORE < item.born <= step)
    alive_bytes = sum(item.size_bytes for item in candidates)
    is_gone = 2 * alive_bytes < sum(bytes_by_step.values())
    return Gone(pace.bytes_per_step, step, "") if is_gone else None


def _progression(size: int, looked: list[int], sizes: Mapping[int, set[int]]) -> int | None:
    """By how much a size grew with each step, all the way back; None where it did not."""
    if len(looked) < 2:
        return None
    newest, before = looked[:2]
    recent = looked[:_LONGEST_PROGRESSION]
    fewest = max(_LEAST_PROGRESSION, 0.6 * len(recent))
    for smaller in sizes[before]:
        added, is_uneven = divmod(size - smaller, newest - before)
        if smaller >= size or is_uneven:
            continue
        expected = ((step, size - added * (newest - step)) for step in recent)
        if _count_matches(expected, added, sizes) >= fewest:
            return added
    return None


def _count_matches(
    expected: Iterable[tuple[int, int]], added: int, sizes: Mapping[int, set[int]]
) -> int:
    """How many steps left the expected size, and not also that of the step after, until one did
    not.
    """
    matches = 0
    for step, size in expected:
        if size <= 0 or size not in sizes[step] or size + added in sizes[step]:
            break
        matches += 1
    return matches


def _entry(search: Search, position: int, parents: Mapping[int, tuple[int, str]]) -> int:
    """Where the way to an item leaves Python's own references for an autograd graph; the item
    itself otherwise.
    """
    entry = position
    while search.in_graph(position):
        position = parents[position][0]
        if position < 0:
            break
        entry = position
    return entry


def _by_step(items: Iterable[Item]) -> dict[int, int]:
    by_step: dict[int, int] = {}
    for item in items:
        if item.born is not None:
            by_step[item.born] = by_step.get(item.born, 0) + item.size_bytes
    return by_step


def _all_below(nodes: Mapping[int, _Node], position: int) -> list[Item]:
    items: list[Item] = []
    waiting = [position]
    while waiting:
        node = nodes[waiting.pop()]
        items += node.direct_items
        waiting += node.below
    return items
