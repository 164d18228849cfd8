"""The time that a search may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import thread_time


@dataclass(frozen=True, slots=True)
class SearchTime:
    """The time that a search may take, by a clock.

    Attributes:
        seconds: after which it ends, and says so.
        clock: by default the processor's time: a busy machine ends a search no earlier. A program
            that must not wait counts all time (``time.monotonic``).
    """

    seconds: float = 10.0
    clock: Callable[[], float] = thread_time


LONG = SearchTime()
