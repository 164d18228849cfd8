"""A finding: one claim about memory, with its verdict, bytes, place, evidence and fix."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vramlens.ground.place import Place as Place  # a finding's own
from vramlens.ground.verdict import Verdict

if TYPE_CHECKING:
    from vramlens.analyses.extent import Extent


@dataclass(frozen=True, slots=True)
class Finding:
    """One claim.

    Attributes:
        id: a stable slug, listed in docs/findings.md.
        verdict: how certain it is.
        title: the claim in one sentence, with its numbers.
        bytes: what it is about, in bytes; None where the input cannot tell.
        place: the line that it points at; None where there is none.
        evidence: what the claim rests on, one sentence each.
        fix: one edit or command, with the bytes to expect from it; None where nothing needs doing.
        fix_without_batch: the fix without its rough word on the batch, which a batch that was
            computed takes the place of; None where the fix speaks of no batch.
        extent: the blocks and holes of a recording that it is about; None where it is about none
            in particular.
        recurs: whether each layer or pass to come would take as much again, so that the fix saves more
            than these bytes.
        limits: of a budget's check, the scopes of the limits that it is about.
    """

    id: str
    verdict: Verdict
    title: str
    bytes: int | None = None
    place: Place | None = None
    evidence: tuple[str, ...] = ()
    fix: str | None = None
    fix_without_batch: str | None = field(default=None, compare=False, repr=False)
    extent: Extent | None = field(default=None, compare=False, repr=False)
    recurs: bool = field(default=False, compare=False, repr=False)
    limits: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The bytes that it is about, as a number to compare: 0 where the input cannot tell."""
        return self.bytes or 0
