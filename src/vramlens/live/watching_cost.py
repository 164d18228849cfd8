"""What watching takes of a run: both counted from the first step of the first unit to the last."""

from __future__ import annotations

from time import perf_counter

_LEAST_TOLD_SECONDS = 0.1
_USUAL_SHARE, _USUAL_SHARE_AT_FIRST = 0.02, 0.05  # of the run; of each unit's first steps


class WatchingCost:
    """The seconds that watching took, and those of the run, over all units of steps."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._unit_began = self._latest_step = 0.0
        self._first_seconds = 0.0  # of the first steps of units that have ended these
        self._is_in_first_steps = True
        self._spent = 0.0

    def unit_begins(self) -> None:
        """The watch begins, or goes on by another unit of steps."""
        self._end_first_steps(self._latest_step)
        self._unit_began = perf_counter()
        self._is_in_first_steps = True
        if self._began is None:
            self._began = self._unit_began

    def first_steps_ended(self) -> None:
        """From now on watching takes less of a unit's steps."""
        self._end_first_steps(perf_counter())

    def step_ended(self, spent_seconds: float) -> None:
        """A step has ended, and watching took that much of it."""
        self.add(spent_seconds)
        self._latest_step = perf_counter()

    def add(self, spent_seconds: float) -> None:
        """Adds what watching took beside that."""
        self._spent += spent_seconds

    def text(self, beside_seconds: float) -> str:
        """The sentence about it; empty where it was no more than usual.

        Args:
            beside_seconds: what it took in the watches that go on.
        """
        spent, elapsed = self._spent + beside_seconds, self._latest_step - (self._began or 0.0)
        if spent < max(_LEAST_TOLD_SECONDS, self._usual_seconds(elapsed)):
            return ""
        of_steps = f" of {elapsed:.2f} s ({100 * spent / elapsed:.0f}%)" if spent < elapsed else ""
        return f"watching for leaks took {spent:.2f} s{of_steps}; the share falls in longer runs"

    def _usual_seconds(self, elapsed: float) -> float:
        first = self._first_seconds
        if self._is_in_first_steps:
            first += self._latest_step - self._unit_began
        return _USUAL_SHARE_AT_FIRST * first + _USUAL_SHARE * (elapsed - first)

    def _end_first_steps(self, now: float) -> None:
        if self._is_in_first_steps and self._began is not None:
            self._first_seconds += now - self._unit_began
        self._is_in_first_steps = False
