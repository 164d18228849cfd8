"""How long the program stood still for what was asked: the times in which no other thread ran."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vramlens.capture.process.undisturbed import undisturbed

_BREATHER_S = 0.02


class Pauses:
    """The pauses of one attach.

    Attributes:
        longest_s, total_s: of what has ended so far.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.total_s = 0.0

    @contextmanager
    def one(self) -> Iterator[None]:
        """No other thread runs inside; afterwards the others get their turn."""
        with undisturbed(), self.counted():
            yield
        time.sleep(_BREATHER_S)

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

    def to_dict(self) -> dict[str, Any]:
        """For the answer."""
        return {"longest_s": round(self.longest_s, 4), "total_s": round(self.total_s, 4)}
