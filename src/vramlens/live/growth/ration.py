"""What a part of the watch may take of the program's time.

Watching the first steps teaches most, so something is free there, and the share of the time that
passes may be larger: an optimizer's first step imports for a second. Beyond them there is a small
share; of what the first steps left over little is kept, for loops of some milliseconds in all.
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

    def __init__(self, free_seconds: float, share: float, first_share: float = 0.0) -> None:
        self.spent = 0.0
        self._free, self._kept, self._later_share = free_seconds, _KEPT * free_seconds, share
        self._share = max(share, first_share)
        self._began = perf_counter()

    @property
    def left(self) -> float:
        """What may be taken now; negative where too much was."""
        return self._free + self._share * (perf_counter() - self._began) - self.spent

    def first_steps_ended(self) -> None:
        """From now on there is little but the share."""
        left_s = min(self.left, self._kept)
        self._share, self._began = self._later_share, perf_counter()
        self._free = left_s + self.spent
