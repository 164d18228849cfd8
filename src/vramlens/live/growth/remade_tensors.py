"""Tensors that each step makes anew, a constant larger than the last: ``x = torch.cat((x, new))``."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice

from vramlens.live.growth.births import Births
from vramlens.live.growth.pace import Pace, pace_of
from vramlens.live.growth.piles import Item, Pile

_LONGEST_PROGRESSION = 512
"""Steps whose sizes are compared: a longer progression says no more than these."""
_LEAST_PROGRESSION = 4
"""Sizes in a row: with three, larger batches of a warm-up pass; with eight, a text of seven tokens is
not seen to grow.
"""


def remade_larger(items: Iterable[Item], births: Births) -> list[Pile]:
    """Tensors that each step makes anew, a constant larger than the last: ``all =
    torch.cat((all, new))``.
    """
    # A program may end in the middle of a step: what that one has left counts, too.
    looked = sorted((step for step in births.sizes if 0 < step <= births.steps + 1), reverse=True)
    if len(looked) < _LEAST_PROGRESSION:
        return []
    sizes = {step: set(births.sizes[step]) for step in looked}
    storages = [item for item in items if item.storage is not None]
    alive = {(item.size_bytes, item.born) for item in storages}
    remade = []
    for item in storages:
        pace = _remade_pace(item, births, sizes, alive)
        if pace is not None:
            born = births.steps + 1 if item.born is None else item.born
            remade.append(Pile(item.position, [replace(item, born=born)], pace, is_remade=True))
    return remade


def _remade_pace(
    item: Item,
    births: Births,
    sizes: dict[int, set[int]],
    alive: set[tuple[int, int | None]],
) -> Pace | None:
    """The pace at which a tensor grew by being made anew; None where it did not.

    Args:
        sizes: those that steps left, the latest step first.
        alive: size and birth of all that is alive.
    """
    size, last_ended = item.size_bytes, births.steps - 1
    if item.born is None:  # made since the last look, and old after a collection that nobody saw
        newest, newest_sizes = births.steps + 1, {size}
    else:
        newest = next((step for step in sizes if size in sizes[step]), 0)
        newest_sizes = sizes.get(newest, set())
        if min(item.born, newest) < max(last_ended, 1):
            return None
    older = list(islice((step for step in sizes if step < newest), _LONGEST_PROGRESSION))
    # A look before a collection, in the middle of a step, is not among the looks at steps' ends.
    earliest = max(births.looks.earliest(newest), older[0] + 1 if older else 0)
    for made in range(newest, earliest - 1, -1):
        added = _progression(size, [made, *older], ChainMap({made: newest_sizes}, sizes))
        if added is not None and not _keeps_smaller(size, made, added, alive):
            return pace_of(dict.fromkeys(range(1, made + 1), added), births.steps, births.looks)
    return None


def _keeps_smaller(size: int, newest: int, added: int, alive: set[tuple[int, int | None]]) -> bool:
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
