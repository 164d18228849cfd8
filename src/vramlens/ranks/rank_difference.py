"""A difference: ranks that hold more than their peers, for one reason."""

from __future__ import annotations

from dataclasses import dataclass

from vramlens.analyses.finding import Finding, Place
from vramlens.ground.verdict import Verdict
from vramlens.units import MIB

LEAST_SHARE, LEAST_BYTES = 0.02, 4 * MIB
"""A rank differs when it holds so much more than usual: the larger of this share and this size."""

STAGE_SHARE = 0.2
"""Stages of a pipeline differ by nature: only so much more than usual is worth moving layers
for.
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """Ranks that hold more than their peers, for one reason.

    Attributes:
        ranks: which, ascending.
        cause: a slug, listed in docs/ranks.md.
        verdict: proven, likely or possible.
        bytes: how much more than usual; of several ranks the most.
        place: the line; None where it is not recorded.
        title: it in one sentence.
        evidence: what it rests on.
        fix: what to do.
    """

    ranks: tuple[int, ...]
    cause: str
    verdict: Verdict
    bytes: int
    place: Place | None
    title: str
    evidence: tuple[str, ...]
    fix: str

    @property
    def finding(self) -> Finding:
        """The difference as a finding."""
        return Finding(
            id=self.cause,
            verdict=self.verdict,
            title=self.title,
            bytes=self.bytes,
            place=self.place,
            evidence=self.evidence,
            fix=self.fix,
        )
