"""Tensors that each step makes anew, larger than the last: ``x = torch.cat((x, new))``."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from itertools import islice

from vramlens.live.growth.births import Births
from vramlens.live.growth.pace import pace_of
from vramlens.live.growth.piles import Item, Pile

_LONGEST_PROGRESSION = 512
"""Steps whose sizes are compared: a longer progression says no more than these."""
_LEAST_PROGRESSION = 4
"""Sizes in a row: with three, larger batches of a warm-up pass; with eight, a text of seven tokens is
not seen to grow.
"""
_FEWEST_UNEVEN = 16
"""Sizes in a row that grow by other amounts: batches of a warm-up are fewer."""
_MOST_AT_ONCE = 8
"""Times the usual amount: of a stretch of time, or of one step with many rows."""
_MOST_CANDIDATES = 4
"""Sizes of the step before that may be the tensor's."""
_GROWN = 2
"""Times its first size: a tensor that grew by other amounts each time has at least doubled."""


def remade_larger(items: Iterable[Item], births: Births) -> list[Pile]:
    """Tensors that each step makes anew, larger than the last: ``all = torch.cat((all, new))``.
    As a rule by a constant, else by more or fewer rows.
    """
    # A program may end in the middle of a step: what that one has left counts, too.
    looked = sorted((step for step in births.sizes if 0 < step <= births.steps + 1), reverse=True)
    if len(looked) < _LEAST_PROGRESSION:
        return []
    sizes = {step: set(births.sizes[step]) for step in looked}
    storages = [item for item in items if item.storage is not None]
    alive = {(item.size_bytes, item.born) for item in storages}
    made_lately = [(item, _newest(item, births, sizes)) for item in storages]
    made_lately = [(item, newest) for item, newest in made_lately if newest]
    even = [_remade(item, newest, births, sizes, alive) for item, newest in made_lately]
    # What one tensor was is no other's.
    for progression in filter(None, even):
        for step in looked:
            sizes[step].discard(progression.size_at(step))
    progressions = [
        progression or _remade_unevenly(item, newest, sizes, alive)
        for (item, newest), progression in zip(made_lately, even, strict=True)
    ]
    piles = (
        _pile_of(item, progression, births)
        for (item, _), progression in zip(made_lately, progressions, strict=True)
        if progression is not None
    )
    return [pile for pile in piles if pile is not None]


@dataclass(frozen=True, slots=True)
class _Progression:
    """A size that grows with each step.

    Attributes:
        newest, size: the step that made the newest tensor, and how large it is.
        added: bytes in each step, on average.
    """

    newest: int
    size: int
    added: int

    def size_at(self, step: int) -> int:
        return self.size - self.added * (self.newest - step)


def _pile_of(item: Item, progression: _Progression, births: Births) -> Pile | None:
    added = dict.fromkeys(range(1, progression.newest + 1), progression.added)
    pace = pace_of(added, births.steps, births.looks)
    born = births.steps + 1 if item.born is None else item.born
    if pace is None:
        return None
    return Pile(item.position, [replace(item, born=born)], pace, is_remade=True)


def _newest(item: Item, births: Births, sizes: Mapping[int, set[int]]) -> int:
    """The latest step that left a tensor of that size; 0 where none did lately.

    Args:
        sizes: those that steps left, the latest step first.
    """
    if item.born is None:  # made since the last look, and old after a collection that nobody saw
        return births.steps + 1
    newest = next((step for step in sizes if item.size_bytes in sizes[step]), 0)
    return 0 if min(item.born, newest) < max(births.steps - 1, 1) else newest


def _remade(
    item: Item,
    newest: int,
    births: Births,
    sizes: dict[int, set[int]],
    alive: Set[tuple[int, int | None]],
) -> _Progression | None:
    """How a tensor grew by being made anew, a constant larger each time; None where it did not.

    Args:
        newest: the step that left it.
        sizes: those that steps left, the latest step first.
        alive: size and birth of all that is alive.
    """
    size = item.size_bytes
    newest_sizes = {size} if item.born is None else sizes[newest]
    older = list(islice((step for step in sizes if step < newest), _LONGEST_PROGRESSION))
    # A look before a collection, in the middle of a step, is not among the looks at steps' ends.
    earliest = max(births.looks.earliest(newest), older[0] + 1 if older else 0)
    for made in range(newest, earliest - 1, -1):
        added = _progression(size, [made, *older], ChainMap({made: newest_sizes}, sizes))
        if added is not None and not _keeps_smaller(size, made, added, alive):
            return _Progression(made, size, added)
    return None


def _remade_unevenly(
    item: Item,
    newest: int,
    sizes: Mapping[int, set[int]],
    alive: Set[tuple[int, int | None]],
) -> _Progression | None:
    """How a tensor grew by being made anew, each time larger, but not by a constant."""
    older = list(islice((step for step in sizes if step < newest), _LONGEST_PROGRESSION))
    added = _uneven_growth(item.size_bytes, [newest, *older], sizes)
    if added is None or _are_many(item.size_bytes, added, alive):
        return None
    return _Progression(newest, item.size_bytes, added)


def _are_many(size: int, added: int, alive: Set[tuple[int, int | None]]) -> bool:
    """Whether some that are a little smaller are still there: it is one of many."""
    nearby = sum(0 < size - other <= _MOST_AT_ONCE * added for other, _ in alive)
    return nearby >= _LEAST_PROGRESSION


def _uneven_growth(size: int, looked: list[int], sizes: Mapping[int, set[int]]) -> int | None:
    """By how much a size grew with each step on average, all the way back; None where it did not."""
    if len(looked) <= _FEWEST_UNEVEN:
        return None
    before = sorted((smaller for smaller in sizes[looked[1]] if smaller < size), reverse=True)
    for smaller in before[:_MOST_CANDIDATES]:
        smallest, steps = _smaller_and_smaller(size, smaller, looked, sizes)
        if steps >= max(_FEWEST_UNEVEN, 0.6 * len(looked)) and size >= _GROWN * smallest:
            return (size - smallest) // (looked[0] - looked[steps])
    return None


def _smaller_and_smaller(
    size: int, smaller: int, looked: list[int], sizes: Mapping[int, set[int]]
) -> tuple[int, int]:
    """Back from two sizes in a row, each step's that is nearest to what the average says, as long as
    there is one that is smaller: the last of them, and how many they are.
    """
    for steps in range(2, len(looked)):
        usual = (size - smaller) / (looked[0] - looked[steps - 1])
        gap = looked[steps - 1] - looked[steps]
        nearby = [
            other
            for other in sizes[looked[steps]]
            if 0 < smaller - other <= _MOST_AT_ONCE * usual * gap
        ]
        if not nearby:
            return smaller, steps - 1
        expected = smaller - usual * gap
        smaller = min(nearby, key=lambda other: abs(other - expected))
    return smaller, len(looked) - 1


def _keeps_smaller(size: int, newest: int, added: int, alive: Set[tuple[int, int | None]]) -> bool:
    """Whether the smaller ones of a progression are still there: it is one of many."""
    older = range(max(newest - _LONGEST_PROGRESSION, 1), newest)
    still_alive = sum(1 for step in older if (size - added * (newest - step), step) in alive)
    return 2 * still_alive >= len(older)


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
