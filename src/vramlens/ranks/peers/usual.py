"""The usual among some ranks: medians, which a few odd ranks do not move."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Set
from copy import copy
from functools import cached_property
from itertools import chain
from typing import TypeVar

from vramlens.analyses.finding import Place
from vramlens.ranks.hints import Hint
from vramlens.ranks.peers.steps_against_peers import PeerStepPeaks
from vramlens.ranks.peers.trained_parameters import UsualTraining
from vramlens.ranks.rank_difference import LEAST_BYTES, LEAST_SHARE
from vramlens.ranks.rank_summary import LineUse, RankSummary

_LEAST_OTHERS = 0.25
"""Of ranks that do not differ, so large a share says what is usual."""
_FEWEST_OF_SIZES, _FEWEST_SIZES = 4, 3
"""Ranks, of which two may differ by a fault; and amounts of a line, of which two are what is usual and
what a fault makes of it.
"""
_ALIKE = 1.02
"""Times an amount: what differs by less is as much."""
_NumberT = TypeVar("_NumberT", int, float)


def lower_median(values: Iterable[_NumberT]) -> _NumberT:
    """The median; of an even number of values the lower one of the middle, so that half of the
    ranks may be odd.
    """
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else 0


def most_alike(sizes: Iterable[int], times: float) -> int:
    """The most of some sizes that are at most so many times the smallest of them."""
    ordered = sorted(sizes)
    return max(bisect_right(ordered, times * size) - at for at, size in enumerate(ordered))


def _levels(sizes: Iterable[int]) -> list[int]:
    """The least of each group of sizes that are alike, ascending."""
    levels: list[int] = []
    for size in sorted(sizes):
        if not levels or size > _ALIKE * levels[-1]:
            levels.append(size)
    return levels


LineKey = tuple[Place | None, Hint]


def key_of(line: LineUse) -> LineKey:
    """What a line is known by on other ranks."""
    return line.place, line.hints


class Usual:
    """The usual among some ranks: the median peak and its spread, and the median of each line."""

    def __init__(self, ranks: Sequence[RankSummary]) -> None:
        self.ranks = ranks
        self.peak_bytes = lower_median(summary.peak_requested_bytes for summary in ranks)
        self.spread_bytes = lower_median(
            abs(summary.peak_requested_bytes - self.peak_bytes) for summary in ranks
        )
        by_line: dict[LineKey, list[LineUse]] = defaultdict(list)
        for line in chain.from_iterable(summary.lines for summary in ranks):
            by_line[key_of(line)].append(line)
        self._lines: dict[LineKey, LineUse] = {}
        self._spreads: dict[LineKey, int] = {}
        self._at_peak: dict[LineKey, int] = {}
        self._allocations: dict[LineKey, frozenset[int]] = {}
        self._sizes: dict[LineKey, list[int]] = {}
        for key, lines in by_line.items():
            self._add_line(key, lines)

    def _add_line(self, key: LineKey, lines: list[LineUse]) -> None:
        self._sizes[key] = [line.peak_bytes for line in lines]
        self._allocations[key] = frozenset(line.allocations for line in lines)
        # Ranks without the line come first: they hold nothing of it.
        without = len(self.ranks) - len(lines)
        self._at_peak[key] = lower_median([0] * without + [line.at_peak_bytes for line in lines])
        middle = (len(self.ranks) - 1) // 2 - without
        if middle < 0:
            return
        usual = sorted(lines, key=lambda line: line.peak_bytes)[middle]
        distances = [abs(line.peak_bytes - usual.peak_bytes) for line in lines]
        self._lines[key] = usual
        self._spreads[key] = lower_median(distances + [usual.peak_bytes] * without)

    def beside(self, rank: RankSummary) -> Usual:
        """What one of the ranks is compared with: of two, the other one is what is usual."""
        if len(self.ranks) != 2:
            return self
        return Usual([other for other in self.ranks if other is not rank])

    def without(self, odd: Set[int]) -> Usual | None:
        """The same with the peak of the others, and what lines hold at it; None where their peak is as
        high, or they are few, or two that do not agree.

        Each of two differences may be of half of the ranks at most. Together they are of more, and
        the median of all peaks contains one of them.
        """
        ranks = [summary for summary in self.ranks if summary.rank not in odd]
        if len(ranks) < max(2, _LEAST_OTHERS * len(self.ranks)):
            return None
        peak_bytes = lower_median(summary.peak_requested_bytes for summary in ranks)
        if self.peak_bytes - peak_bytes < max(LEAST_SHARE * self.peak_bytes, LEAST_BYTES):
            return None
        highest = max(summary.peak_requested_bytes for summary in ranks)
        if len(ranks) == 2 and highest - peak_bytes >= LEAST_SHARE * peak_bytes:
            return None
        others = Usual(ranks)
        usual = copy(self)
        usual.peak_bytes, usual.spread_bytes = others.peak_bytes, others.spread_bytes
        usual._at_peak = others._at_peak
        return usual

    def line(self, line: LineUse) -> LineUse | None:
        """The same line on a typical rank; None where most have none."""
        return self._lines.get(key_of(line))

    def has_several_sizes(self, line: LineUse) -> bool:
        """True if the same line holds three amounts and more on the ranks, none of them on most, and is
        no further above the others than these are apart.
        """
        sizes = sorted(self._sizes.get(key_of(line), []))
        if not _FEWEST_OF_SIZES <= len(sizes) <= len(self.ranks):
            return False
        others = [size for size in sizes if size < line.peak_bytes] or sizes
        is_among = line.peak_bytes - others[-1] <= others[-1] - others[0]
        is_usual = 2 * most_alike(sizes, _ALIKE) > len(sizes)
        return is_among and not is_usual and len(_levels(sizes)) >= _FEWEST_SIZES

    def allocations_of(self, line: LineUse) -> frozenset[int]:
        """The numbers of allocations that ranks make at the same line."""
        return self._allocations.get(key_of(line), frozenset())

    def line_bytes(self, line: LineUse) -> int:
        """The most bytes that the same line holds on a typical rank."""
        usual = self.line(line)
        return 0 if usual is None else usual.peak_bytes

    def line_at_peak_bytes(self, line: LineUse) -> int:
        """The bytes that the same line holds at the peak of a typical rank."""
        return self._at_peak.get(key_of(line), 0)

    def line_spread(self, line: LineUse) -> int:
        """The distance of the same line from the usual on a typical rank, in bytes; 0 where most
        have none.
        """
        return self._spreads.get(key_of(line), 0)

    @cached_property
    def steps_count(self) -> int:
        """The number of steps that a typical rank recorded."""
        return lower_median(len(summary.step_peaks) for summary in self.ranks)

    @cached_property
    def frames(self) -> dict[Place, int]:
        """The frames that most ranks have, each with the median of its bytes at the peak."""
        by_place: dict[Place, list[int]] = defaultdict(list)
        for frame in chain.from_iterable(summary.frames for summary in self.ranks):
            by_place[frame.place].append(frame.at_peak_bytes)
        most = len(self.ranks) // 2 + 1
        return {
            place: lower_median(sizes) for place, sizes in by_place.items() if len(sizes) >= most
        }

    @cached_property
    def gap(self) -> tuple[int, int]:
        """The bytes reserved beyond what is allocated: the median, and its spread."""
        gaps = [
            summary.peak_reserved_bytes - summary.peak_allocated_bytes for summary in self.ranks
        ]
        middle = lower_median(gaps)
        return middle, lower_median(abs(gap - middle) for gap in gaps)

    @cached_property
    def unrequested_bytes(self) -> int:
        """The median of the bytes reserved beyond what is requested: padding is in it."""
        return lower_median(
            summary.peak_reserved_bytes - summary.peak_requested_bytes for summary in self.ranks
        )

    @cached_property
    def leaking(self) -> Counter[Place | None]:
        """The number of ranks that have something that grows, by line."""
        leaking: Counter[Place | None] = Counter()
        for summary in self.ranks:
            leaking.update({leak.place for leak in summary.leaks})
        return leaking

    @cached_property
    def recomputed_share(self) -> float:
        """The median share of requested bytes that were computed again; 0 where no rank says."""
        all_shares = (summary.recomputed_share for summary in self.ranks)
        return lower_median(share for share in all_shares if share is not None)

    @cached_property
    def training(self) -> UsualTraining:
        """Which parameters they train."""
        return UsualTraining(self.ranks)

    @cached_property
    def steps(self) -> PeerStepPeaks:
        """The peaks of their steps."""
        return PeerStepPeaks(self.ranks)

    @cached_property
    def reserved_bytes(self) -> int:
        """The median of the reserved peak."""
        return lower_median(summary.peak_reserved_bytes for summary in self.ranks)

    @cached_property
    def alloc_conf(self) -> str | None:
        """The allocator's settings that most have, of those that say; of as many, those of ranks
        that reserve less.
        """
        by_conf: dict[str, list[int]] = defaultdict(list)
        for summary in self.ranks:
            if summary.alloc_conf is not None:
                by_conf[summary.alloc_conf].append(summary.peak_reserved_bytes)
        return max(
            by_conf,
            key=lambda conf: (len(by_conf[conf]), -lower_median(by_conf[conf])),
            default=None,
        )

    @cached_property
    def ledger(self) -> dict[str, int]:
        """The median of each kind of the ledger, of the ranks whose driver was asked; empty
        where none was.
        """
        ledgers = [dict(summary.ledger) for summary in self.ranks if summary.ledger]
        kinds = set(chain.from_iterable(ledgers))
        return {kind: lower_median(ledger.get(kind, 0) for ledger in ledgers) for kind in kinds}
