"""A script whose prediction is held against a budget: its recording is gone when the answer is
read.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vramlens.units import format_size


@dataclass(frozen=True, slots=True)
class PredictedScript:
    """What was predicted.

    Attributes:
        script: the script.
        options: those of ``vramlens predict`` that decided the prediction.
        arguments: the script's own.
        reserved_bytes: the predicted peak.
        low_bytes, high_bytes: between which it lies.
        is_open: whether memory hangs on a loop of which nobody knows the turns.
        cards: by memory of a card that it was asked for, whether it fits; None where that cannot
            be told.
    """

    script: str
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    reserved_bytes: int = 0
    low_bytes: int = 0
    high_bytes: int = 0
    is_open: bool = False
    cards: Mapping[int, bool | None] = field(default_factory=dict)

    @property
    def range_text(self) -> str:
        """The predicted peak, in words."""
        low, high = format_size(self.low_bytes), format_size(self.high_bytes)
        text = f"predicted peak reserved {format_size(self.reserved_bytes)} ({low} to {high})"
        return (
            f"{text}, and a loop may take more iterations than predicted" if self.is_open else text
        )

    def command(self, verb: str, *, options: Sequence[str] = ()) -> str:
        """The command that asks a verb about the script again.

        Args:
            options: of the verb, beside those of the prediction.
        """
        own = ("--", *self.arguments) if self.arguments else ()
        return shlex.join(("vramlens", verb, *options, *self.options, self.script, *own))
