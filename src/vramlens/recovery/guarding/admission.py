"""Admission: the predicted peak of a batch, before it runs, from the peaks of those that ran."""

from __future__ import annotations

from collections.abc import Sequence

from vramlens.recovery.meters import Meter
from vramlens.recovery.splitting.batch_parts import leaves_of
from vramlens.recovery.training.batch_attempts import Call

_LIMIT_HOLDS_FOR = 100
"""Steps after which the limit is asked for again: other processes come and go."""


class PeakGuess:
    """Predicts from the highest peak so far: base + (peak - base) * elements / elements then.

    Peaks are convex in the size of a batch (docs/guard.md), so for smaller parts that is an upper
    bound, and for larger ones the slope between the last two peaks is looked at as well. PyTorch's
    own peak counter is read, never reset.
    """

    def __init__(self, meter: Meter, threshold: float) -> None:
        self._meter, self._threshold = meter, threshold
        self._base: int | None = None
        self._points: list[tuple[int, int]] = []  # elements of the largest part, peak; rising
        self._limit: int | None = None
        self._asked = 0
        self._retries = self._thrashed = 0
        self._stale = (
            0 if meter.kind == "none" else meter.peak_bytes()
        )  # of what came before, or of what failed

    def forget(self) -> None:
        """Called after a failure: the counter's peak is that of the failed attempt from now on."""
        if self._meter.kind != "none":
            self._stale = self._meter.peak_bytes()
            self._points.clear()

    def learn(self, calls: Sequence[Call]) -> None:
        """Reads the counters after a step."""
        if self._meter.kind == "none":
            return
        now, peak, retries = self._meter.figures()
        self._base = now if self._base is None else min(self._base, now)
        self._thrashed = self._thrashed + 1 if retries > self._retries else 0
        self._retries = retries
        if peak > (self._points[-1][1] if self._points else self._stale):
            elements = max(elements_of(call) for call in calls)
            self._points = [*[p for p in self._points if p[0] < elements][-1:], (elements, peak)]

    def share_that_fits(self, call: Call, size: int | None) -> float | None:
        """The share of a part with which the peak stays below the threshold; None: it does, or
        nothing is known.
        """
        if self._meter.kind == "none" or not self._points or self._base is None:
            return None
        if (
            self._thrashed >= 2
        ):  # the allocator emptied its cache in each of the last steps: nearly out of memory
            self._thrashed = 0
            return 0.5
        limit = self._limit_bytes()
        if limit is None:
            return None
        elements = elements_of(call)
        if size is not None and call.samples is not None and call.samples.count > size:
            elements = elements * size // call.samples.count
        room = int(limit * self._threshold)
        predicted = self.predict(elements)
        if predicted <= room:
            return None
        over = max(1, predicted - self._base)
        return max(0.0, min(0.999, (room - self._base) / over))

    def predict(self, elements: int) -> int:
        """The peak of a part with so many elements, in bytes."""
        assert self._base is not None
        peak_elements, peak = self._points[-1]
        guess = self._base + (peak - self._base) * elements // max(1, peak_elements)
        if len(self._points) > 1 and elements > peak_elements:
            before, lower = self._points[-2]
            guess = max(
                guess,
                peak
                + (peak - lower) * (elements - peak_elements) // max(1, peak_elements - before),
            )
        return guess

    def _limit_bytes(self) -> int | None:
        if self._asked % _LIMIT_HOLDS_FOR == 0:
            limit = self._meter.limit_bytes()
            self._limit = None if limit is None else limit[0]
        self._asked += 1
        return self._limit


def elements_of(call: Call) -> int:
    """Elements of all tensors in a call's batch, or in its part where it was split."""
    total = sum(leaf.numel() for _, leaf in leaves_of(call.batch))
    if call.size is not None and call.samples is not None:
        return max(1, total * call.size // call.samples.count)
    return max(1, total)
