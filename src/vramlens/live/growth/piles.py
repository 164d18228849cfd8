"""What grew: live bytes by the step that they were born in, gathered at the object where steps pile
up.

A leak is what *every* stretch of the run left behind and nobody gave back: births from the first
steps after warm-up to the last, at a steady pace. What stopped is a cache that has filled; what has
no old births is emptied now and then (an epoch's metrics, a ring) or has only just begun; what all
came at once is state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from vramlens.live.growth.births import BEFORE, Births
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
    own: list[Item] = field(default_factory=list)
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
    known: int,
) -> tuple[list[Pile], list[Pile]]:
    """The objects at which steps pile up; and those at which they did, or may: late or ended.

    Args:
        steps: how many steps have ended.
        known: the last step whose births are known.
    """
    nodes: dict[int, _Node] = {}
    for item in items:
        if item.born is None or item.born <= BEFORE:
            continue
        nodes.setdefault(_entry(search, item.position, parents), _Node()).own.append(item)
    waiting = sorted(nodes, reverse=True)
    on_the_way = set(waiting)
    while waiting:  # every object on the way to a root
        above = []
        for position in waiting:
            parent = parents[position][0]
            if parent >= 0:
                if parent not in on_the_way:
                    on_the_way.add(parent)
                    above.append(parent)
                nodes.setdefault(parent, _Node()).below.append(position)
        waiting = above
    for position in sorted(nodes, reverse=True):
        node = nodes[position]
        if len(node.below) == 1 and not node.own:  # it only leads there
            node.bytes_by_step, node.pace = (
                nodes[node.below[0]].bytes_by_step,
                nodes[node.below[0]].pace,
            )
            continue
        for item in node.own:
            if item.born is not None:
                node.bytes_by_step[item.born] = (
                    node.bytes_by_step.get(item.born, 0) + item.size_bytes
                )
        for child in node.below:
            for step, size in nodes[child].bytes_by_step.items():
                node.bytes_by_step[step] = node.bytes_by_step.get(step, 0) + size
        node.pace = pace_of(node.bytes_by_step, steps, known)
    doubtful: list[Pile] = []
    found, tops = _spread(
        search, nodes, [place for place in nodes if parents[place][0] < 0], steps, known
    )
    while tops:
        position = tops.pop()
        node = nodes[position]
        growing = [child for child in node.below if nodes[child].is_steady]
        tops += growing
        here = [*node.own]
        for child in node.below:
            if child not in growing:
                here += _all_below(nodes, child)
        rest = pace_of(_by_step(here), steps, known) if here else None
        if rest is None or (not growing and node.pace is None):
            continue
        if rest.is_steady:
            found.append(Pile(position, here, rest))
        elif not growing or rest.steps >= FEWEST:
            # Perhaps one of them below: a list that began late, a ring.
            inner = [
                child
                for child in node.below
                if child not in growing and nodes[child].pace is not None
            ]
            if inner:
                tops += inner
            else:
                doubtful.append(Pile(position, here, rest))
    return found, doubtful


def _spread(
    search: Search, nodes: Mapping[int, _Node], tops: list[int], steps: int, known: int
) -> tuple[list[Pile], list[int]]:
    """Piles of one variable of a function that runs many times at once; and the tops that are
    not part of any.
    """
    by_variable: dict[Any, list[int]] = {}
    for position in tops:
        root = search.roots.get(position)
        if root is not None and root.kind == "variable" and not nodes[position].is_steady:
            by_variable.setdefault((root.code, root.name), []).append(position)
    found: list[Pile] = []
    taken: set[int] = set()
    for positions in by_variable.values():
        if len(positions) < FEWEST:
            continue
        items = [item for position in positions for item in _all_below(nodes, position)]
        pace = pace_of(_by_step(items), steps, known)
        if pace is not None and pace.is_steady and pace.filled >= _SHARE_SPREAD:
            found.append(Pile(positions[0], items, pace, is_spread=True))
            taken.update(positions)
    return found, [position for position in tops if position not in taken]


def pace_of(bytes_by_step: Mapping[int, int], steps: int, known: int) -> Pace | None:
    """How births are spread; None where too few different steps have any.

    Args:
        bytes_by_step: bytes that were born, by step.
        steps: how many steps have ended; what the last one left may be in use still.
        known: the last step whose births are known: later ones count as one.
    """
    if known < steps:
        later = sum(size for step, size in bytes_by_step.items() if step > known)
        bytes_by_step = {step: size for step, size in bytes_by_step.items() if step <= known}
        if later:
            bytes_by_step[known + 1] = later
        steps = known + 1
    born = sorted(step for step in bytes_by_step if WARM_UP < step < steps)
    if len(born) < FEWEST:
        return None
    window = steps - 1 - WARM_UP
    gaps = [after - before for before, after in pairwise(born)]
    gap = median(gaps)
    to_the_end = steps - 1 - born[-1] <= 1.5 * gap
    from_early = born[0] - WARM_UP - 1 <= max(gap, window / 3)
    middle = (WARM_UP + 1 + steps) / 2
    first_half = sum(1 for step in born if step < middle)
    goes_on = 2 * (len(born) - first_half) >= first_half
    filled = len(born) / window
    return Pace(
        steps=len(born),
        is_steady=to_the_end and from_early and goes_on,
        is_late=to_the_end and not from_early,
        first=born[0],
        last=born[-1],
        filled=filled,
        bytes_per_step=round(_rate(born, [bytes_by_step[step] for step in born], gaps, filled)),
    )


def _rate(born: list[int], sums: list[int], gaps: list[int], filled: float) -> float:
    """Bytes that a step adds on the average."""
    if filled >= _SHARE_FILLED:
        usual, span = median(sums), born[-1] - born[0] + 1
        alike = sum(1 for size in sums if abs(size - usual) <= _ALIKE * usual)
        if 2 * alike <= len(sums):
            return sum(sums) / span
        # Where most agree, what one step seems to have made more is another's, or was made once;
        # and what seems to be missing was not seen, unless it is missing at even distances.
        absent = sorted(set(range(born[0], born[-1])).difference(born))
        is_even = (
            len(absent) > 2 and len({after - before for before, after in pairwise(absent)}) == 1
        )
        return min(usual, sum(sums) / span) if is_even else usual
    # Where births were not looked for at each step's end, one look finds those of several: all
    # since the look before. What comes in bursts (each epoch's validation) is measured from the
    # begin of one to the begin of another.
    usual_gap = median(gaps)
    starts = [0, *(place for place, gap in enumerate(gaps, 1) if gap > usual_gap)]
    last = starts[-1] if len(starts) > _FEWEST_BURSTS else len(born) - 1
    return sum(sums[1 : last + 1]) / (born[last] - born[0])


def remade_larger(search: Search, items: Iterable[Item], births: Births) -> list[Pile]:
    """Tensors that each step makes anew, a constant larger than the last: ``all =
    torch.cat((all, new))``.
    """
    steps = births.steps
    looked = sorted((step for step in births.sizes if 0 < step <= steps), reverse=True)
    sizes = {step: set(births.sizes[step]) for step in looked}
    items = list(items)
    alive = {(item.size_bytes, item.born) for item in items if item.storage is not None}
    found = []
    for item in items:
        if (
            item.storage is None
            or item.born is None
            or item.born < steps - 1
            or len(looked) < _LEAST_PROGRESSION
        ):
            continue
        newest = next((step for step in looked if item.size_bytes in sizes[step]), None)
        if newest is None or newest < steps - 1:
            continue
        added = _progression(item.size_bytes, [step for step in looked if step <= newest], sizes)
        if added is not None:
            older = range(max(newest - _LONGEST_PROGRESSION, 1), newest)
            kept = sum(
                1 for step in older if (item.size_bytes - added * (newest - step), step) in alive
            )
            if 2 * kept >= len(older):  # the smaller ones are still there: it is one of many
                continue
            by_step = dict.fromkeys(range(1, newest + 1), added)
            pace = pace_of(by_step, steps, births.known_until)
            if pace is not None:
                found.append(Pile(item.position, [item], pace, is_remade=True))
    return found


def gone_growth(items: Iterable[Item], births: Births) -> Gone | None:
    """What had grown steadily when bytes were summed last, if not even half of it is alive now."""
    step, bytes_by_step = births.latest_sum
    pace = pace_of(bytes_by_step, step, step)
    if pace is None or not pace.is_steady or not births.is_summed:
        return None
    left = sum(item.size_bytes for item in items if item.born is None or BEFORE < item.born <= step)
    return None if 2 * left >= sum(bytes_by_step.values()) else Gone(pace.bytes_per_step, step, "")


def _progression(size: int, looked: list[int], sizes: Mapping[int, set[int]]) -> int | None:
    """By how much a size grew with each step, all the way back; None where it did not."""
    newest, before = looked[0], looked[1] if len(looked) > 1 else 0
    if not before:
        return None
    for smaller in sizes[before]:
        if smaller >= size or (size - smaller) % (newest - before):
            continue
        added = (size - smaller) // (newest - before)
        matched = 0
        for step in looked[:_LONGEST_PROGRESSION]:
            expected = size - added * (newest - step)
            if expected <= 0 or expected not in sizes[step] or expected + added in sizes[step]:
                break
            matched += 1
        if matched >= max(_LEAST_PROGRESSION, 0.6 * min(len(looked), _LONGEST_PROGRESSION)):
            return added
    return None


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
    found: dict[int, int] = {}
    for item in items:
        if item.born is not None:
            found[item.born] = found.get(item.born, 0) + item.size_bytes
    return found


def _all_below(nodes: Mapping[int, _Node], position: int) -> list[Item]:
    found: list[Item] = []
    waiting: list[Any] = [position]
    while waiting:
        node = nodes[waiting.pop()]
        found += node.own
        waiting += node.below
    return found
