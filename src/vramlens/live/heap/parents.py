"""Who held what a search found: looked for afterwards, in the chunk alone that it came from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

from vramlens.capture.process.referents import Referents
from vramlens.capture.process.undisturbed import undisturbed


class FoundIn(NamedTuple):
    """Where things were found.

    Attributes:
        order: everything that was reached, parents before children.
        roots: positions of roots.
        starts: of each chunk, where its children begin.
        ranges: of each chunk, where its parents are.
        labels: how a child was reached, where only the search knows, by position.
    """

    order: Sequence[Any]
    roots: Collection[int]
    starts: Sequence[int]
    ranges: Sequence[tuple[int, int]]
    labels: Mapping[int, str]


def parents_of(
    positions: Iterable[int], found_in: FoundIn, referents: Referents
) -> dict[int, tuple[int, str]]:
    """For these positions and all above them: the parent's position (-1 for a root) and a label if
    the search made one.
    """
    wanted = _Wanted(found_in)
    for position in positions:
        wanted.add(position)
    with undisturbed():
        while wanted.chunks:
            chunk, places = wanted.take_latest()
            low, high = found_in.ranges[chunk]
            if high - low == 1:
                for position in places.values():
                    wanted.parents[position] = (low, found_in.labels.get(position, ""))
                wanted.add(low)
            else:
                wanted.look_in(range(low, high), places, referents)
    return wanted.parents


class _Wanted:
    """The positions whose parents are looked for.

    Attributes:
        parents: those that are known.
        chunks: numbers of the chunks with some that are not, negative, as a heap.
    """

    def __init__(self, found_in: FoundIn) -> None:
        self.parents: dict[int, tuple[int, str]] = {}
        self.chunks: list[int] = []
        self._found_in = found_in
        self._by_chunk: dict[int, dict[int, int]] = {}

    def add(self, position: int) -> None:
        """Wants one more."""
        if position in self.parents:
            return
        if position in self._found_in.roots:
            self.parents[position] = (-1, "")
            return
        chunk = bisect_right(self._found_in.starts, position) - 1
        if chunk not in self._by_chunk:
            self._by_chunk[chunk] = {}
            heappush(self.chunks, -chunk)
        self._by_chunk[chunk][id(self._found_in.order[position])] = position

    def take_latest(self) -> tuple[int, dict[int, int]]:
        """The latest chunk, and its positions by the identity of what is there."""
        chunk = -heappop(self.chunks)
        return chunk, self._by_chunk.pop(chunk)

    def look_in(self, holders: range, places: dict[int, int], referents: Referents) -> None:
        """Looks for the parents of positions among some that may hold what is there."""
        for holder in holders:
            for referent in referents.of_one(self._found_in.order[holder]):
                child = places.pop(id(referent), None)
                if child is not None:
                    self.parents[child] = (holder, "")
                    self.add(holder)
            if not places:
                return
        for position in places.values():  # the program changed it meanwhile
            self.parents[position] = (-1, "")
