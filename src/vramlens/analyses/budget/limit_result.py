"""Results: a limit of a budget, held against a run."""

from __future__ import annotations

from dataclasses import dataclass

from vramlens.analyses.budget.budget_file import SHARE, SIZE, Limit
from vramlens.units import format_size


@dataclass(frozen=True, slots=True)
class Result:
    """One limit, held against the run.

    Attributes:
        limit: as the file says it.
        value: what the run had; None where the recording cannot tell.
        passed: None where the recording cannot tell.
        why: why it cannot tell, or what is to be known about the value; "" else.
        rank: of a job, the rank that keeps the limit least; None for one recording.
    """

    limit: Limit
    value: float | None
    passed: bool | None
    why: str = ""
    rank: int | None = None

    @property
    def words(self) -> str:
        """The result as a phrase: ``20.31 GiB, 319.00 MiB over its limit of 20.00 GiB``."""
        limit = shown(self.limit.kind, self.limit.value)
        if self.value is None:
            return f"unknown: {self.why}"
        value = shown(self.limit.kind, self.value)
        if self.passed:
            return f"{value} of {limit}"
        if self.limit.kind == SIZE:
            return (
                f"{value}, {format_size(self.value - self.limit.value)} over its limit of {limit}"
            )
        return f"{value}, over its limit of {limit}"


def shown(kind: str, value: float) -> str:
    """A limit's value as people say it."""
    if kind == SIZE:
        return format_size(value)
    return f"{value * 100:.3g}%" if kind == SHARE else f"{int(value):,}"
