"""The certainty of claims, numbers and rows of the ledger: the words that output and JSON share."""

from __future__ import annotations

from collections.abc import Iterable

from vramlens.ground.vocabulary import ClosedWords


class Verdict(ClosedWords):
    """The certainty of a finding or a category, the most certain first."""

    PROVEN = "proven"
    LIKELY = "likely"
    POSSIBLE = "possible"
    NOT_A_PROBLEM = "not a problem"

    @property
    def is_sure(self) -> bool:
        """Whether it is certain enough to act on."""
        return self in (Verdict.PROVEN, Verdict.LIKELY)


def least_sure(verdicts: Iterable[Verdict]) -> Verdict:
    """The least certain of some verdicts."""
    return max(verdicts, key=lambda verdict: verdict.rank)


class Confidence(ClosedWords):
    """The trust that a number deserves, the most trusted first."""

    EXACT = "exact"
    BOUNDED = "bounded"
    ESTIMATED = "estimated"
    CONDITIONAL = "conditional"


class RowConfidence(ClosedWords):
    """Where a row of the ledger comes from: measured, computed from others, or neither."""

    EXACT = "exact"
    INFERRED = "inferred"
    UNKNOWN = "unknown"
