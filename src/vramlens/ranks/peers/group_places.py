"""Places in process groups: the first or the last rank of each group of one kind may do what the
others do not, as one that samples for its tensor-parallel group does; and each place may have a
part of its own size, or a stage of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from vramlens.analyses.finding import Place
from vramlens.ranks.hints import Hint
from vramlens.ranks.peers.usual import LineKey, key_of, lower_median, most_alike
from vramlens.ranks.rank_difference import LEAST_BYTES
from vramlens.ranks.rank_summary import RankSummary

_FAULTS = Hint.LOAD | Hint.OBJECTS | Hint.STATE_DICT | Hint.GATHER | Hint.DATA_PARALLEL
"""What such lines hold is better told than taken for a rank's work."""
_LEAST_SHARE = 0.1
"""Of the peak, that a share of a group's is."""
_WORDS = {0: "first", -1: "last"}
_FEWEST_PLACES = 4
"""Of fewer places with unequal parts, one may be a fault's."""
_FEWEST_DIVIDED = 3
"""Of two parts, one may hold what was to be divided."""
_SAME = 0.01
"""Peaks that are less of a share apart are equal."""
_MOST_ALIKE = 0.25
"""Of the places: where more hold the same, others differ from it."""
_MOST_EQUAL = 0.75
"""Of the ranks: so many hold what is usual at their place."""


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """The ranks at one place of equal groups, which do work that no other rank does.

    Attributes:
        members: the ranks, ascending.
        group: what the groups are called.
        place: which in its group each of them is, in a word; "" for all ranks of the only such group.
        bytes: what the work holds at most, on the rank with least of it.
        line: the line that holds most of it.
    """

    members: tuple[int, ...]
    group: str
    place: str
    bytes: int
    line: Place


def places_with_work(
    ranks: Sequence[RankSummary], groups: Iterable[tuple[str, Sequence[int]]]
) -> list[GroupPlace]:
    """The places of groups of one name that have work of their own, the first such name's; [] where
    all ranks do the same.
    """
    present = {summary.rank: summary for summary in ranks}
    for name, tiles in tilings(groups, present):
        ranks_at = by_place(tiles)
        places = (
            _place_with_work(name, word, ranks_at[at], present) for at, word in _WORDS.items()
        )
        with_work = [place for place in places if place is not None]
        if with_work:
            return with_work
    for name, members in _groups_of_leaders(groups, present):
        place = _place_with_work(name, "", members, present)
        if place is not None:
            return [place]
    return []


def _groups_of_leaders(
    groups: Iterable[tuple[str, Sequence[int]]], present: Collection[int]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the groups that are the only ones of their name, and have one rank of each group of
    another name.
    """
    by_name = _by_name((name, sorted(members)) for name, members in groups)
    divided = [tiles for tiles in by_name.values() if len(tiles) > 1 and _cover(tiles, present)]
    for name, of_name in by_name.items():
        only = of_name[0]
        leads = any(
            all(len(set(tile).intersection(only)) == 1 for tile in tiles) for tiles in divided
        )
        if len(of_name) == 1 and 1 < len(only) < len(present) and leads:
            yield name, only


def by_size_of_group(
    ranks: Sequence[RankSummary], groups: Iterable[tuple[str, Sequence[int]]]
) -> tuple[tuple[int, ...], ...]:
    """The ranks by the size of their group, where some of one name have other sizes and what each rank
    builds once is a share of its group's; () elsewhere.
    """
    present = [summary.rank for summary in ranks]
    for tiles in _by_name(groups).values():
        size_of = {rank: len(members) for members in tiles for rank in members}
        counts = Counter(size_of.values())
        sizes = sorted(counts)
        is_whole = _cover(tiles, present)
        have_peers = min(counts.values(), default=0) > 1
        if is_whole and len(sizes) > 1 and have_peers and _has_shares(ranks, size_of):
            return tuple(
                tuple(sorted(rank for rank in size_of if size_of[rank] == size)) for size in sizes
            )
    return ()


def _has_shares(ranks: Sequence[RankSummary], size_of: Mapping[int, int]) -> bool:
    """True if a line builds once on each rank what its group has, divided by the group's size, and
    that is a part of the peak.
    """
    wholes: dict[LineKey, list[int]] = defaultdict(list)
    for summary in ranks:
        for line in summary.lines:
            if line.static and line.peak_bytes >= _LEAST_SHARE * summary.peak_requested_bytes:
                wholes[key_of(line)].append(line.peak_bytes * size_of.get(summary.rank, 0))
    return any(
        len(of_line) == len(ranks) and 0 < max(of_line) <= (1 + _SAME) * min(of_line)
        for of_line in wholes.values()
    )


def uneven_places(
    ranks: Sequence[RankSummary], groups: Iterable[tuple[str, Sequence[int]]]
) -> tuple[tuple[int, ...], ...]:
    """The ranks by their place in groups where that alone says how much they hold, as in a ring whose
    ranks have unequal parts of a sequence; () where it does not.
    """
    present = {summary.rank: summary for summary in ranks}
    peaks = {rank: summary.peak_requested_bytes for rank, summary in present.items()}
    for _, tiles in tilings(groups, present):
        places = by_place(tiles)
        usual = [lower_median(peaks[rank] for rank in members) for members in places]
        equal = sum(
            abs(peaks[rank] - size) <= _SAME * size
            for members, size in zip(places, usual, strict=True)
            for rank in members
        )
        alike = most_alike(usual, 1 + _SAME)
        is_uneven = len(places) >= _FEWEST_PLACES and alike <= _MOST_ALIKE * len(places)
        if is_uneven and equal > _MOST_EQUAL * len(peaks):
            return tuple(sorted(places))
    return ()


def larger_parts(
    ranks: Sequence[RankSummary], groups: Iterable[tuple[str, Sequence[int]]]
) -> frozenset[int]:
    """The ranks that hold one unit more of what does not divide, such as heads of attention: the
    first ones of each group then, as PyTorch divides. Empty where all parts are equal.
    """
    present = {summary.rank: summary for summary in ranks}
    for _, tiles in tilings(groups, present):
        places = by_place(tiles)
        parameters = [_parameters_at([present[rank] for rank in members]) for members in places]
        lines = set(parameters[0]).intersection(*parameters[1:])
        sizes = [[at[line] for at in parameters] for line in lines]
        divided = [of_line for of_line in sizes if min(of_line) < max(of_line)]
        counts = set(map(_larger_at, divided))
        # A whole model that is larger was not divided.
        is_part = 2 * sum(map(max, divided)) <= sum(map(max, sizes))
        if len(places) >= _FEWEST_DIVIDED and is_part and len(counts) == 1 and counts != {0}:
            return frozenset(chain.from_iterable(places[: counts.pop()]))
    return frozenset()


def _parameters_at(ranks: Sequence[RankSummary]) -> dict[tuple[LineKey, int], int]:
    """The parameters of ranks at one place by line and number: the bytes, where all agree."""
    sizes: dict[tuple[LineKey, int], set[int]] = defaultdict(set)
    for line in chain.from_iterable(summary.lines for summary in ranks):
        if line.category == "parameters" and not line.hints & Hint.EMBEDDING:
            sizes[key_of(line), line.allocations].add(line.peak_bytes)
    return {line: min(of_line) for line, of_line in sizes.items() if len(of_line) == 1}


def _larger_at(sizes: Sequence[int]) -> int:
    """How many places, the first ones, hold one unit more than the others; 0 where none does."""
    small, large = min(sizes), max(sizes)
    count = sizes.count(large)
    is_divided = list(sizes) == [large] * count + [small] * (len(sizes) - count)
    units = small / max(1, large - small)
    is_one_unit = round(units) >= 1 and abs(units - round(units)) <= _SAME * units
    return count if is_divided and is_one_unit else 0


def stages_by_place(
    cohorts: Sequence[Sequence[int]],
    present: Collection[int],
    groups: Iterable[tuple[str, Sequence[int]]],
) -> tuple[tuple[int, ...], ...]:
    """The stages of a pipeline in their order, where groups tell which parts of a model belong to
    one pipeline: the parts are known by what they hold, and stages in the middle hold the same.
    () where no groups tell.
    """
    part_of = {rank: part for part, members in enumerate(cohorts) for rank in members}
    for _, tiles in tilings(groups, present):
        places = by_place(tiles)
        parts = [{part_of[rank] for rank in members} for members in places]
        if all(len(of_place) == 1 for of_place in parts) and len(set().union(*parts)) > 1:
            return places
    return ()


def by_place(tiles: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The ranks of equal groups by their place in these, ascending at each."""
    return tuple(tuple(sorted(ranks)) for ranks in zip(*tiles, strict=True))


def tilings(
    groups: Iterable[tuple[str, Sequence[int]]], present: Collection[int]
) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
    """Yields two and more groups of one name and size that have each of some ranks in one of them."""
    inside = frozenset(present)
    for name, tiles in _by_name(group for group in groups if inside.issuperset(group[1])).items():
        sizes = {len(members) for members in tiles}
        if len(tiles) > 1 and len(sizes) == 1 and min(sizes) > 1 and _cover(tiles, present):
            yield name, tiles


def _by_name(
    groups: Iterable[tuple[str, Sequence[int]]],
) -> dict[str, list[tuple[int, ...]]]:
    """The groups of each name, once each; both in order."""
    by_name: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for name, members in groups:
        by_name[name].add(tuple(members))
    return {name: sorted(by_name[name]) for name in sorted(by_name)}


def _cover(tiles: Iterable[tuple[int, ...]], present: Collection[int]) -> bool:
    """True if some groups have each rank in one of them."""
    return sorted(chain.from_iterable(tiles)) == sorted(present)


def _place_with_work(
    name: str, word: str, members: tuple[int, ...], present: Mapping[int, RankSummary]
) -> GroupPlace | None:
    first, *others = (_bytes_by_place(present[rank]) for rank in members)
    own = {
        place: min(size, *(of_rank[place] for of_rank in others))
        for place, size in first.items()
        if all(place in of_rank for of_rank in others)
    }
    for rank in present.keys() - set(members):
        if not own:  # as a rule after the first
            return None
        for place in _bytes_by_place(present[rank], leaving_out=Hint.NONE):
            own.pop(place, None)
    if sum(own.values()) < LEAST_BYTES:
        return None
    largest = max(own, key=lambda place: (own[place], str(place)))
    return GroupPlace(
        members=members, group=name, place=word, bytes=sum(own.values()), line=largest
    )


def _bytes_by_place(summary: RankSummary, leaving_out: Hint = _FAULTS) -> dict[Place, int]:
    """The most bytes of each recorded line, but those that such calls made."""
    sizes: dict[Place, int] = defaultdict(int)
    for line in summary.lines:
        if line.place is not None and not line.hints & leaving_out:
            sizes[line.place] += line.peak_bytes
    return dict(sizes)
