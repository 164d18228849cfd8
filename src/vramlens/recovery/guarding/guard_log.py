"""What a guard has counted and noted so far, from which its report is made."""

from __future__ import annotations

from typing import Any

from vramlens.recovery.guarding.guard_story import GuardEvent, GuardReport, GuardStory, Stop
from vramlens.recovery.meters import Meter


class GuardLog:
    """Counts of steps and failures, and the events.

    Attributes:
        steps: committed steps.
        failures: out-of-memory errors of this guard's attempts; ``recovered``: those after which
            training went on.
        elsewhere: steps that were run again because memory ran out on another rank.
        calls: batches that were given.
        stop: why the guard has stopped; None: it has not.
    """

    def __init__(self, meter: Meter) -> None:
        self.steps = 0
        self.failures = 0
        self.recovered = 0
        self.elsewhere = 0
        self.calls = 0
        self.stop: Stop | None = None
        self._caught = 0
        self._story = GuardStory()
        self._meter = meter
        self._refused_before = self._refused_requests()

    @property
    def step(self) -> int:
        """The number of the step that is being made, from 1."""
        return self.steps + 1

    def note(
        self, kind: str, text: str, changes_numbers: bool = False, size: int | None = None
    ) -> None:
        """Adds an event to the story; see ``GuardEvent`` for the kinds."""
        self._caught += kind == "caught"
        if kind == "step":  # a failure in the optimizer's step, which is repeated
            self.failures += 1
            self.recovered += 1
        self._story.add(GuardEvent(self.step, kind, text, changes_numbers, bytes=size))

    def count_caught(self) -> None:
        """Counts a check that ran out of memory, which is not a failure of training."""
        self._caught += 1

    def report(self, **figures: Any) -> GuardReport:
        """The report, with the figures that only the guard knows."""
        return GuardReport(
            steps=self.steps,
            failures=self.failures,
            recovered=self.recovered,
            calls=self.calls,
            stop=self.stop,
            events=self._story.events,
            left_out=self._story.left_out,
            elsewhere=self.elsewhere,
            caught=self._caught_requests(),
            **figures,
        )

    def _caught_requests(self) -> int:
        """Failed requests that were not among this guard's failures: as the allocator counts them,
        if it does.
        """
        refused_since = self._refused_requests() - self._refused_before
        return max(self._caught, refused_since - self.failures)

    def _refused_requests(self) -> int:
        """Requests that the allocator has refused, whoever caught that; 0 where nobody counts."""
        return int(getattr(self._meter, "failed_requests", int)())
