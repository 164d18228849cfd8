"""What a part of the watch may take of the program's time.

Watching the first steps teaches most, so something is free there. Beyond them there is a share of
the time that passes; of what the first steps left over little is kept, for loops of some
milliseconds in all.
"""

from __future__ import annotations

from time import perf_counter

FIRST_STEPS = 50
_KEPT = 0.25  # of what is free


class Ration:
    """Processor time, in seconds.

    Attributes:
        spent: how much was taken so far.
    """

    def __init__(self, free_seconds: float, share: float) -> None:
        self.spent = 0.0
        self._free, self._share = free_seconds, share
        self._began = perf_counter()

    @property
    def left(self) -> float:
        """What may be taken now; negative where too much was."""
        return self._free + self._share * (perf_counter() - self._began) - self.spent

    def first_steps_ended(self) -> None:
        """From now on there is little but the share."""
        self._free -= max(self.left - _KEPT * self._free, 0.0)
