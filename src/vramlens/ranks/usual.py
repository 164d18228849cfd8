"""What is usual among some ranks: medians, which a few odd ranks do not move."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

from vramlens.analyses.finding import Place
from vramlens.ranks.hints import Hint
from vramlens.ranks.steps import StepPeaks
from vramlens.ranks.summary import LineUse, RankSummary


def lower_median(values: Iterable[int]) -> int:
    """The median; of an even number of values the lower one of the middle, so that half of the
    ranks may be odd.
    """
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else 0


class Usual:
    """What is usual among some ranks: the median peak and its spread, and the median of each
    line.
    """

    def __init__(self, ranks: Sequence[RankSummary]) -> None:
        self.ranks = ranks
        self.peak_bytes = lower_median(one.peak_requested_bytes for one in ranks)
        self.spread_bytes = lower_median(
            abs(one.peak_requested_bytes - self.peak_bytes) for one in ranks
        )
        by_line: dict[tuple[Place | None, Hint], list[LineUse]] = defaultdict(list)
        for one in ranks:
            for line in one.lines:
                by_line[line.place, line.hints].append(line)
        self._lines, self._spreads = {}, {}
        self._at_peak: dict[tuple[Place | None, Hint], int] = {}
        for key, found in by_line.items():
            # Ranks without the line come first: they hold nothing of it.
            place = (len(ranks) - 1) // 2 - (len(ranks) - len(found))
            absent = [0] * (len(ranks) - len(found))
            self._at_peak[key] = lower_median(absent + [each.at_peak_bytes for each in found])
            if place >= 0:
                usual = sorted(found, key=lambda each: each.peak_bytes)[place]
                self._lines[key] = usual
                away = [abs(each.peak_bytes - usual.peak_bytes) for each in found]
                self._spreads[key] = lower_median(
                    away + [usual.peak_bytes] * (len(ranks) - len(found))
                )

    def line(self, own: LineUse) -> LineUse | None:
        """The same line on a typical rank; None where most have none."""
        return self._lines.get((own.place, own.hints))

    def line_bytes(self, own: LineUse) -> int:
        """What the same line holds at most on a typical rank."""
        usual = self.line(own)
        return 0 if usual is None else usual.peak_bytes

    def line_at_peak_bytes(self, own: LineUse) -> int:
        """What the same line holds at the peak of a typical rank."""
        return self._at_peak.get((own.place, own.hints), 0)

    def line_spread(self, own: LineUse) -> int:
        """How far the same line is from the usual on a typical rank, in bytes; 0 where most have
        none.
        """
        return self._spreads.get((own.place, own.hints), 0)

    @cached_property
    def gap(self) -> tuple[int, int]:
        """What is reserved beyond what is allocated: the median, and its spread."""
        gaps = [one.peak_reserved_bytes - one.peak_allocated_bytes for one in self.ranks]
        middle = lower_median(gaps)
        return middle, lower_median(abs(gap - middle) for gap in gaps)

    @cached_property
    def leaking(self) -> Counter[Place | None]:
        """How many of them have something that grows, by line."""
        return Counter(place for one in self.ranks for place in {leak.place for leak in one.leaks})

    @cached_property
    def steps(self) -> StepPeaks:
        """The peaks of their steps."""
        return StepPeaks(self.ranks)

    @cached_property
    def reserved_bytes(self) -> int:
        """The median of the reserved peak."""
        return lower_median(one.peak_reserved_bytes for one in self.ranks)

    @cached_property
    def ledger(self) -> dict[str, int]:
        """The median of each kind of the ledger, of the ranks whose driver was asked; empty
        where none was.
        """
        ledgers = [dict(one.ledger) for one in self.ranks if one.ledger]
        kinds = {kind for one in ledgers for kind in one}
        return {kind: lower_median(one.get(kind, 0) for one in ledgers) for kind in kinds}
