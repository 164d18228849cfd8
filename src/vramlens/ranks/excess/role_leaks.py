"""Leaks of cohorts that do other work than each other, and are not compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from vramlens.analyses.finding import Place
from vramlens.ground.verdict import Verdict
from vramlens.ranks.excess.causes import Position
from vramlens.ranks.excess.leak_differences import leak_differences
from vramlens.ranks.excess.rank_against_peers import RankAgainstPeers
from vramlens.ranks.peers.usual import Usual
from vramlens.ranks.rank_difference import RankDifference
from vramlens.ranks.rank_summary import RankSummary


@dataclass(frozen=True, eq=False)
class RoleLeaks:
    """The leaks of ranks that are alone in their cohort, and those that a whole cohort has. Those of
    single ranks are told beside their peers.

    Attributes:
        ranks: all ranks, by number.
        cohorts: who does the same work.
        positions: of each rank.
        shared: lines at which most ranks of the job leak, which is told of all of them.
    """

    ranks: Mapping[int, RankSummary]
    cohorts: Sequence[tuple[int, ...]]
    positions: Mapping[int, Position]
    shared: Set[Place | None]

    def differences(self) -> Iterator[RankDifference]:
        """Yields the leaks; how much the ranks hold says nothing."""
        for members in self.cohorts if len(self.cohorts) > 1 else ():
            if len(members) == 1:
                yield from self._of_lone_rank(members[0])
            else:
                yield from self._of_cohort(members)

    def _of_lone_rank(self, rank: int) -> list[RankDifference]:
        """The sure leaks of one that nobody does the same work as: a buffer that fills grows, too; and
        what only grows, where too few steps are there to judge.
        """
        beside = self._beside(rank, self._usual)
        leaks = leak_differences(beside, only_sure=True)
        return leaks if self.ranks[rank].leaks else [*leaks, *beside.lone_leaks(leaks)]

    def _of_cohort(self, members: Sequence[int]) -> Iterator[RankDifference]:
        others = self.ranks.keys() - set(members)
        for place, leaking in self._leaking_together(members).items():
            typical = leaking[(len(leaking) - 1) // 2]
            usual = Usual([self.ranks[rank] for rank in sorted({typical, *others})])
            beside = self._beside(typical, usual)
            for leak in leak_differences(beside):
                if leak.place == place:
                    yield replace(leak, ranks=tuple(sorted(leaking)))

    def _leaking_together(self, members: Sequence[int]) -> dict[Place | None, list[int]]:
        """The lines at which at least half of a rank's peers leak, too, with the ranks that do; the
        one that leaks most is the last.
        """
        leaking: dict[Place | None, dict[int, int]] = defaultdict(dict)
        for rank in members:
            for leak in self.ranks[rank].leaks:
                if leak.verdict != Verdict.NOT_A_PROBLEM and leak.place not in self.shared:
                    leaking[leak.place][rank] = leak.bytes
        return {
            place: sorted(of_ranks, key=of_ranks.__getitem__)
            for place, of_ranks in leaking.items()
            if len(of_ranks) > 1 and 2 * (len(of_ranks) - 1) >= len(members) - 1
        }

    def _beside(self, rank: int, usual: Usual) -> RankAgainstPeers:
        summary = self.ranks[rank]
        return RankAgainstPeers(summary, usual.beside(summary), self.positions[rank], ())

    @cached_property
    def _usual(self) -> Usual:
        return Usual(tuple(self.ranks.values()))
