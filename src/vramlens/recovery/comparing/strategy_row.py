"""What one strategy did: a row of the table of strategies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from vramlens.errors import UsageError
from vramlens.recovery.comparing.strategy_kinds import parts_of


@dataclass(frozen=True, slots=True)
class StrategyRow:
    """What one strategy did.

    Attributes:
        outcome: done, not here (``why`` says why), out of memory, or failed.
        peak_allocated_bytes, peak_reserved_bytes: the most of any repeat.
        step_ms: the median; ``step_spread_ms``: between the fastest and the slowest process.
        loss_drift: the mean difference of the losses from the default's, as a share.
        gradient_drift: the first gradient's difference over its norm; None where there is none to
            compare.
        difficulty: 1 a line or a variable, 2 a few lines, 3 another training loop.
        same_numbers: whether training is the same up to rounding.
        edit: what to write.
        front: no other is smaller and faster.
        low_reserved_bytes, high_reserved_bytes: of a prediction, between which its peak lies.
    """

    name: str
    outcome: str
    why: str
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    step_ms: float | None
    step_spread_ms: float | None
    loss_drift: float | None
    gradient_drift: float | None
    difficulty: int
    same_numbers: bool
    best_for: str
    edit: str
    front: bool = False
    low_reserved_bytes: int | None = None
    high_reserved_bytes: int | None = None

    def on_front(self, front: bool) -> StrategyRow:
        """The same, marked."""
        return replace(self, front=front)

    def apply(self, model: Any) -> Any:
        """The model with this strategy in it.

        Raises:
            UsageError: it does not change the model; the text is the edit to make.
        """
        for part in parts_of(self.name):
            if part.applies is None:
                raise UsageError(f"{part.name} does not change the model: write {part.edit}")
        for part in parts_of(self.name):
            assert part.applies is not None
            model = part.applies(model)
        return model
