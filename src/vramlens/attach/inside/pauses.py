"""How long the program stood still for what was asked: by our own count, and by its steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vramlens.capture.process.own_thread import wait
from vramlens.capture.process.undisturbed import undisturbed

_SHORTEST_REST_S = 0.02
_MOST_STEPS = 10_000
_FEWEST_STEPS = 3


class Pauses:
    """The pauses of one attach.

    Attributes:
        longest_s, total_s: of what has ended so far.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.total_s = 0.0
        self._step_ended_at: float | None = None
        self._steps_s: list[float] = []
        self._timed = "step"

    @contextmanager
    def one(self) -> Iterator[None]:
        """No other thread runs inside; afterwards the others get their turn."""
        with undisturbed(), self.counted():
            yield
        wait(_SHORTEST_REST_S)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts what happens inside as a pause."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(time.perf_counter() - began)

    def add(self, seconds: float) -> None:
        """Counts a pause that was measured elsewhere."""
        self.longest_s = max(self.longest_s, seconds)
        self.total_s += seconds

    def step_ended(self, timed: str) -> None:
        """At the end of each step of the program.

        Args:
            timed: what it is: an optimizer's "step", or a "call" of the model. Where calls came
                before the first step, they are forgotten.
        """
        now = time.perf_counter()
        if timed != self._timed:
            self._timed, self._steps_s, self._step_ended_at = timed, [], None
        if self._step_ended_at is not None and len(self._steps_s) < _MOST_STEPS:
            self._steps_s.append(now - self._step_ended_at)
        self._step_ended_at = now

    def to_dict(self) -> dict[str, Any]:
        """For the answer."""
        steps_s = list(self._steps_s)
        has_steps = len(steps_s) >= _FEWEST_STEPS
        return {
            "longest_s": round(self.longest_s, 4),
            "total_s": round(self.total_s, 4),
            "longest_step_s": round(max(steps_s), 4) if has_steps else None,
            "median_step_s": round(statistics.median(steps_s), 4) if has_steps else None,
            "timed": self._timed,
        }
