"""How certain a claim, a number and a ledger's row are: the words that output and JSON share."""

from __future__ import annotations

from vramlens.ground.closed_words import ClosedWords


class Verdict(ClosedWords):
    """How certain a finding or a category is, the most certain first."""

    PROVEN = "proven"
    LIKELY = "likely"
    POSSIBLE = "possible"
    NOT_A_PROBLEM = "not a problem"


class Confidence(ClosedWords):
    """How far a number can be trusted, the most trusted first."""

    EXACT = "exact"
    BOUNDED = "bounded"
    ESTIMATED = "estimated"
    CONDITIONAL = "conditional"


class RowConfidence(ClosedWords):
    """Where a row of the ledger comes from: measured, computed from others, or neither."""

    EXACT = "exact"
    INFERRED = "inferred"
    UNKNOWN = "unknown"
