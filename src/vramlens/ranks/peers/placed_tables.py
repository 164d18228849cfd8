"""Tables that are placed: each rank owns other ones, so that their sizes differ by nature."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain

from vramlens.ranks.peers.usual import LineKey, key_of
from vramlens.ranks.rank_summary import LineUse, RankSummary
from vramlens.units import format_size

_FEWEST_RANKS = 4
"""Fewer ranks may differ from each other by a fault of one or two."""
_SAME = 1.02
"""Times the size: what differs by less is the same."""
_SPREAD = 1.25
"""Times the smallest size: shards that were rounded up differ by less."""
_MOST_ALIKE = 0.25
"""Of the ranks: where more have the same size, that one is usual, and others differ from it."""


class PlacedTables:
    """The tables of ranks that do the same work, where each rank owns other ones and the rest of the
    model is the same on all of them.

    Args:
        peers: the ranks.
        may_be_placed: False where these may be stages, which own layers.
    """

    def __init__(self, peers: Sequence[RankSummary], *, may_be_placed: bool = True) -> None:
        self._peers, self._may_be_placed = peers, may_be_placed

    def has(self, line: LineUse) -> bool:
        """True if a line makes the tables, or what belongs to them."""
        return key_of(line) in self._usual

    @property
    def peers(self) -> list[RankSummary]:
        """The ranks as if each had the usual tables; as they are where no tables are placed."""
        return list(map(self._with_usual_tables, self._peers))

    @property
    def notes(self) -> list[str]:
        """One sentence on what the ranks own; none where no tables are placed."""
        if not self._usual:
            return []
        owned = {rank.rank: sum(line.peak_bytes for line in self._of(rank)) for rank in self._peers}
        least, most = min(owned, key=owned.__getitem__), max(owned, key=owned.__getitem__)
        places = {str(line.place) for line in self._usual.values() if _makes_tables(line)}
        return [
            "each rank has tables of its own, so their sizes differ by nature:"
            f" {format_size(owned[least])} on rank {least} to {format_size(owned[most])} on rank"
            f" {most}, built at {' and '.join(sorted(places))}; the ranks are compared as if each"
            " had the usual ones"
        ]

    def _with_usual_tables(self, rank: RankSummary) -> RankSummary:
        if not self._usual:
            return rank
        own, usual = self._of(rank), self._usual.values()
        more = _at_peak(usual) - _at_peak(own)
        return replace(
            rank,
            peak_requested_bytes=rank.peak_requested_bytes + more,
            peak_allocated_bytes=rank.peak_allocated_bytes + more,
            peak_reserved_bytes=rank.peak_reserved_bytes + more,
            step_peaks=tuple(peak + more for peak in rank.step_peaks),
            lines=(*usual, *(line for line in rank.lines if not self.has(line))),
        )

    def _of(self, rank: RankSummary) -> list[LineUse]:
        return [line for line in rank.lines if self.has(line)]

    @cached_property
    def _usual(self) -> dict[LineKey, LineUse]:
        """The lines that make tables and what belongs to them, each as the usual rank uses it."""
        if not self._may_be_placed or len(self._peers) < _FEWEST_RANKS:
            return {}
        of_all = self._lines_of_all
        spread = {key for key, lines in of_all.items() if _is_spread(lines)}
        made = {key for key, lines in of_all.items() if _makes_tables(lines[0])}
        if made <= spread:
            return {}  # ranks that hold other layers, and no part in common
        files = {key[0].file for key in made & spread if key[0] is not None}
        return {
            key: _median(lines)
            for key, lines in of_all.items()
            if key in spread and key[0] is not None and key[0].file in files
        }

    @cached_property
    def _lines_of_all(self) -> dict[LineKey, list[LineUse]]:
        """The lines at which all ranks build what stays, each as they use it."""
        by_line: dict[LineKey, list[LineUse]] = defaultdict(list)
        for line in chain.from_iterable(rank.lines for rank in self._peers):
            if line.static:
                by_line[key_of(line)].append(line)
        return {key: lines for key, lines in by_line.items() if len(lines) == len(self._peers)}


def _is_spread(lines: Sequence[LineUse]) -> bool:
    """True if none of the sizes is a usual one."""
    sizes = sorted(line.peak_bytes for line in lines)
    if not sizes[-1] >= _SPREAD * sizes[0] > 0:
        return False
    alike = max(bisect_right(sizes, _SAME * size) - index for index, size in enumerate(sizes))
    return alike <= _MOST_ALIKE * len(sizes)


def _makes_tables(line: LineUse) -> bool:
    return line.category == "parameters"


def _median(lines: Sequence[LineUse]) -> LineUse:
    ordered = sorted(lines, key=lambda line: line.peak_bytes)
    return ordered[(len(ordered) - 1) // 2]


def _at_peak(lines: Iterable[LineUse]) -> int:
    return sum(line.at_peak_bytes for line in lines)
