"""The answer about the ranks of a job: their differences, failures and collectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vramlens.analyses.finding import Finding
from vramlens.ground.printed_answer import PrintedAnswer
from vramlens.ranks.flights.collectives import CollectiveProblem
from vramlens.ranks.notes import ends_early
from vramlens.ranks.peers.rank_cohorts import RankCohorts
from vramlens.ranks.rank_difference import RankDifference
from vramlens.ranks.rank_failures import FailureOrder
from vramlens.ranks.rank_summary import RankSummary
from vramlens.ranks.rank_words import named
from vramlens.trace.flight import FlightRecord


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(PrintedAnswer):
    """The answer about some ranks.

    Attributes:
        ranks: their summaries, by number.
        missing: numbers of the ranks of which there is nothing.
        cohorts: who was compared with whom.
        differences: worst first; none where nothing is worth acting on.
        shared: leaks, and memory that one edit gives back, that more than half of the ranks have
            alike, the largest first.
        collectives: the first collective of each group that went wrong.
        failures: who failed, in order.
        flights: the flight records, by rank.
        by_device: whether these are devices of one process.
        notes: what could not be read or compared, one sentence each.
        strangers: ranks whose recordings look like another program's, and were not compared.
    """

    ranks: tuple[RankSummary, ...]
    missing: tuple[int, ...]
    cohorts: RankCohorts
    differences: tuple[RankDifference, ...]
    shared: tuple[Finding, ...]
    collectives: tuple[CollectiveProblem, ...]
    failures: FailureOrder
    flights: Mapping[int, FlightRecord]
    by_device: bool
    notes: tuple[str, ...]
    strangers: frozenset[int] = frozenset()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The differences as findings, then what all share."""
        return tuple(difference.finding for difference in self.differences) + self.shared

    @property
    def is_no_job(self) -> bool:
        """True if the recordings look like different programs, so that none was compared."""
        return bool(self.ranks) and len(self.strangers) == len(self.ranks)

    @property
    def unjudged(self) -> tuple[str, ...]:
        """Why something may be wrong that nothing here shows, one phrase each; () where all ranks
        could be looked at.
        """
        reasons = ["the recordings are not of one job"] if self.is_no_job else []
        recorded = {summary.rank for summary in self.ranks}
        unrecorded = sorted({*self.flights} - recorded) if recorded else []
        if unrecorded:
            reasons.append(f"{named(unrecorded)} left no recording that can be read")
        if self.missing:
            reasons.append(f"{named(self.missing)} left no files that can be read")
        return (*reasons, *ends_early(self.ranks))

    @property
    def has_trouble(self) -> bool:
        """True if a rank failed, or a finding is proven or likely."""
        return bool(self.failures.failed) or any(
            finding.verdict.is_sure for finding in self.findings
        )
