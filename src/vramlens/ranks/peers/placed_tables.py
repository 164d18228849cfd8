"""Tables that are placed, and optimizer states that are divided by whole tensors: each rank owns
other ones, so that their sizes differ by nature.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain

from vramlens.ranks.hints import Hint
from vramlens.ranks.peers.usual import LineKey, key_of, most_alike
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
_FEW_MORE = 1.1
"""Times the number of states: a tensor or two that cannot be sharded, and not all states again."""
_FOLLOWING = 0.1
"""Of what one owns more than another."""
_FEWEST_OWNERS = 2
_FEWEST_SHARES = 3
"""Ranks with so many different numbers of tables, or of states, divide them by whole tensors."""
_TOO_MUCH = 0.5
"""Of the states of all ranks: one that holds more, and in more tensors than usual, has those of
others.
"""


class PlacedTables:
    """The tables, or optimizer states, of ranks that do the same work, where each rank owns other
    ones and the rest of the model is the same on all of them.

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
        return list(map(self._with_usual_tables, self._peers)) if self._usual else [*self._peers]

    def explains(self, excess_bytes: int) -> bool:
        """True if so little is more beside what ranks own more that it follows from that: the
        temporaries of larger tables.
        """
        sizes = self._owned.values()
        return excess_bytes <= _FOLLOWING * (max(sizes, default=0) - min(sizes, default=0))

    @cached_property
    def _owned(self) -> dict[int, int]:
        """What each rank owns, in bytes."""
        return {
            rank.rank: sum(line.peak_bytes for line in rank.lines if key_of(line) in usual)
            for rank in self._peers
            if self._usual and (usual := self._usual_of(rank))
        }

    @property
    def notes(self) -> list[str]:
        """One sentence on what the ranks own; none where no tables are placed."""
        owned = self._owned
        if not owned or max(owned.values()) <= _SAME * min(owned.values()):
            return []
        least, most = min(owned, key=owned.__getitem__), max(owned, key=owned.__getitem__)
        tables = [line for line in self._usual.values() if _makes_tables(line)]
        places = {str(line.place) for line in tables or self._usual.values()}
        return [
            f"each rank has {'tables' if tables else 'optimizer states'} of its own, so their sizes"
            f" differ by nature: {format_size(owned[least])} on rank {least} to"
            f" {format_size(owned[most])} on rank {most}, built at {' and '.join(sorted(places))};"
            " the ranks are compared as if each had the usual ones"
        ]

    def _with_usual_tables(self, rank: RankSummary) -> RankSummary:
        usual = self._usual_of(rank)
        own_lines = [line for line in rank.lines if key_of(line) in usual]
        more = _at_peak(usual.values()) - _at_peak(own_lines)
        return replace(
            rank,
            peak_requested_bytes=rank.peak_requested_bytes + more,
            peak_allocated_bytes=rank.peak_allocated_bytes + more,
            peak_reserved_bytes=rank.peak_reserved_bytes + more,
            step_peaks=tuple(peak + more for peak in rank.step_peaks),
            lines=(*usual.values(), *(line for line in rank.lines if key_of(line) not in usual)),
        )

    def _usual_of(self, rank: RankSummary) -> dict[LineKey, LineUse]:
        """The lines that are taken for a rank's own: not those of states for which it has too
        little memory, or which are those of others.
        """
        keeps = self._states.keys() if rank.is_short or self._has_states_of_others(rank) else ()
        return {key: line for key, line in self._usual.items() if key not in keeps}

    def _has_states_of_others(self, rank: RankSummary) -> bool:
        """True if one rank holds most of the states of all, and not because one tensor is large."""
        own = {key_of(line): line for line in rank.lines}
        return any(
            own[key].peak_bytes > too_much and own[key].allocations > self._usual[key].allocations
            for key, too_much in self._most_of_states.items()
            if key in own
        )

    @cached_property
    def _most_of_states(self) -> dict[LineKey, float]:
        """By line that makes states, the bytes from which on they are too many for one rank."""
        return {
            key: _TOO_MUCH * sum(line.peak_bytes for line in lines)
            for key, lines in self._states.items()
            if not self._are_sharded
        }

    @cached_property
    def _usual(self) -> dict[LineKey, LineUse]:
        """The lines that make tables and what belongs to them, each as the usual rank uses it."""
        if not self._may_be_placed:
            return {}
        are_few = len(self._peers) < _FEWEST_RANKS
        tables = self._tables_of_few() if are_few else self._tables()
        return tables | {key: _median(lines) for key, lines in self._states.items()}

    def _tables_of_few(self) -> dict[LineKey, LineUse]:
        """The lines that make embedding tables, where the rank that holds most has fewer of them: few
        large ones, and its peers many small ones.
        """
        return {
            key: _median(lines)
            for key, lines in self._built_once.items()
            if len(lines) == len(self._peers) > 1
            and key[1] & Hint.EMBEDDING
            and _makes_tables(lines[0])
            and _has_fewer_and_larger(lines)
        }

    def _tables(self) -> dict[LineKey, LineUse]:
        """The lines that make tables, and what belongs to them."""
        of_all = {
            key: lines for key, lines in self._built_once.items() if len(lines) == len(self._peers)
        }
        spread = {key for key, lines in of_all.items() if _is_spread(lines)}
        tables = {key for key, lines in of_all.items() if _makes_tables(lines[0])}
        if tables <= spread:
            return {}  # ranks that hold other layers, and no part in common
        files = {key[0].file for key in tables & spread if key[0] is not None}
        return {
            key: _median(lines)
            for key, lines in of_all.items()
            if key in spread and key[0] is not None and key[0].file in files
        }

    @cached_property
    def _states(self) -> dict[LineKey, list[LineUse]]:
        """The lines that make optimizer states, of which ranks have different numbers."""
        return {
            key: lines
            for key, lines in self._built_once.items()
            if any(line.category == "optimizer_state" for line in lines)
            and self._are_by_tensor(lines)
        }

    def _are_by_tensor(self, lines: Sequence[LineUse]) -> bool:
        """True if the optimizer states of a line are of whole tensors, which some ranks own."""
        if len(lines) < _FEWEST_OWNERS:
            return False
        if self._are_sharded:
            counts = [line.allocations for line in lines]
            return min(counts) < max(counts) <= _FEW_MORE * min(counts)
        if len(self._peers) >= _FEWEST_RANKS:
            return _is_divided(lines)
        return _has_fewer_and_larger(lines)

    @cached_property
    def _are_sharded(self) -> bool:
        """True if all ranks hold as much of sharded parameters: FSDP pads them to one size, and what
        it cannot divide is one rank's.
        """
        sizes = [sum(line.peak_bytes for line in _shards(rank)) for rank in self._peers]
        return 0 < max(sizes, default=0) <= _SAME * min(sizes)

    @cached_property
    def _built_once(self) -> dict[LineKey, list[LineUse]]:
        """The lines at which ranks build what stays, each as they use it."""
        by_line: dict[LineKey, list[LineUse]] = defaultdict(list)
        for line in chain.from_iterable(rank.lines for rank in self._peers):
            if line.static:
                by_line[key_of(line)].append(line)
        return by_line


def _is_spread(lines: Sequence[LineUse]) -> bool:
    """True if none of the sizes is a usual one; or if all but the largest come in different
    numbers: a planner gives few large tables to one rank and many small ones to another.
    """
    ascending = sorted(lines, key=lambda line: line.peak_bytes)
    sizes = [line.peak_bytes for line in ascending]
    if not sizes[-1] >= _SPREAD * sizes[0] > 0:
        return False
    return most_alike(sizes, _SAME) <= _MOST_ALIKE * len(sizes) or _is_divided(ascending[:-1])


def _is_divided(lines: Sequence[LineUse]) -> bool:
    """True if ranks have different numbers of tensors of a line."""
    return len({line.allocations for line in lines}) >= _FEWEST_SHARES


def _has_fewer_and_larger(lines: Sequence[LineUse]) -> bool:
    """True if the rank that holds most of a line has fewer tensors of it than the one with least."""
    least, *_, most = sorted(lines, key=lambda line: line.peak_bytes)
    return most.allocations < least.allocations


def _shards(rank: RankSummary) -> Iterator[LineUse]:
    """Yields the lines that make sharded parameters."""
    for line in rank.lines:
        if line.category == "parameters" and line.hints & Hint.SHARDED:
            yield line


def _makes_tables(line: LineUse) -> bool:
    return line.category == "parameters"


def _median(lines: Sequence[LineUse]) -> LineUse:
    ordered = sorted(lines, key=lambda line: line.peak_bytes)
    return ordered[(len(ordered) - 1) // 2]


def _at_peak(lines: Iterable[LineUse]) -> int:
    return sum(line.at_peak_bytes for line in lines)
