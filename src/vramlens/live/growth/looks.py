"""At which steps' ends there was time to look at what was new.

A birth is known as the first look after it. Where looks are rare, one of them stands for many
steps: what came at an even pace seems to come ever more rarely if steps are counted, and to have
stopped if the steps of the newest look are left out. So halves of a run are halves of its looks,
and the stretch of the newest look speaks only where it is empty.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Looks:
    """The looks at births.

    Attributes:
        steps: those at whose end there was a look, in their order.
        blind_step: the latest step in which the collector made young objects old unseen.
    """

    steps: Sequence[int]
    blind_step: int = 0

    @classmethod
    def at_every_step(cls, steps: int) -> Looks:
        """The looks of a run in which none was left out."""
        return cls(range(1, steps + 1))

    @property
    def latest(self) -> int:
        """The last step with a look at its end; 0 where there was none."""
        return self.steps[-1] if self.steps else 0

    def number(self, step: int) -> int:
        """How many looks it took until a birth in this step was seen: the step itself where each
        was looked at.
        """
        return bisect_left(self.steps, step) + 1

    def earliest(self, step: int) -> int:
        """The first step that a birth of this step may be of: the look before did not see it."""
        place = bisect_left(self.steps, step)
        return (self.steps[place - 1] if place else 0) + 1

    def finder(self, step: int) -> int | None:
        """The step at whose end a birth of this step was looked for; None where none came after it."""
        place = bisect_left(self.steps, step)
        return self.steps[place] if place < len(self.steps) else None

    def judged_until(self, births: Collection[int], steps: int) -> int:
        """The last step by whose births growth may be judged.

        What the last step left behind may be in use still, and so may what the newest look found,
        as it cannot tell the last step from those before. If it found nothing, nothing came. What
        is known to be of a step since the look before, as autograd nodes are, is older.

        Args:
            births: steps of births.
            steps: how many steps have ended.
        """
        place = bisect_left(self.steps, steps)
        before = self.steps[place - 1] if place else 0
        is_empty = before >= self.blind_step and all(step <= before for step in births)
        is_dated = any(before < step < steps for step in births)
        return steps - 1 if is_empty or is_dated else before
