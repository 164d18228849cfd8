"""The fit: the memory peak of a training step by its batch size, with bounds on both sides.

A step is a sequence of phases, and the bytes of each grow affinely with the batch: activations and
temporaries with it, parameters, gradients and optimizer state not at all. The peak is the largest
of them, so it is convex and piecewise
linear: flat for small batches, where the optimizer's or the gradients' phase is the fullest, steep
for large ones. A line through two points therefore lies *below* the peak beyond them, and batch
sizes taken from it alone fail.

Upper bounds hold as well. No phase has less than the persistent bytes P at size zero, so for n
beyond a measured size m forward and backward have at most P + (peak(m) - P) * n / m; and in the
optimizer's step only the batch itself grows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramlens.recovery.batch_size.scaled_requests import StepRequests

_CAUTION = 3.0
"""Activations and their gradients together, in units of what the forward has: for the jump from
the first probe.
"""


@dataclass(frozen=True, slots=True)
class Probe:
    """One measured size.

    Attributes:
        size: samples in the batch.
        forward_bytes, backward_bytes, step_bytes: the most bytes that were allocated in each phase.
        batch_bytes: of the batch itself.
        reserved_bytes: the most that the allocator had from the driver.
        waste_bytes: free between live blocks at the end of the forward: lost to fragmentation.
        retries: how often the allocator had to empty its cache: more than once or twice is nearly
            out of memory.
        seconds: how long the probe took.
        requests: what its steps asked of the allocator; None where that was not noted.
    """

    size: int
    forward_bytes: int
    backward_bytes: int
    step_bytes: int = 0
    batch_bytes: int = 0
    reserved_bytes: int = 0
    waste_bytes: int = 0
    retries: int = 0
    seconds: float = 0.0
    requests: StepRequests | None = field(default=None, compare=False, repr=False)

    @property
    def phases(self) -> tuple[int, int, int]:
        """The peaks of forward, backward and step."""
        return self.forward_bytes, self.backward_bytes, self.step_bytes

    @property
    def peak_bytes(self) -> int:
        """The most of all."""
        return max(self.phases)

    @property
    def phase(self) -> str:
        """Where that was."""
        return ("forward", "backward", "step")[self.phases.index(self.peak_bytes)]


@dataclass(frozen=True, slots=True)
class PeakFit:
    """Bounds of the peak, from probes.

    Attributes:
        persistent_bytes: parameters, buffers and optimizer state: what is there between steps.
        gradient_bytes: of all gradients.
        probes: by rising size, at least one.
    """

    persistent_bytes: int
    gradient_bytes: int
    probes: tuple[Probe, ...]

    @property
    def per_sample_bytes(self) -> float:
        """What one more sample takes at the fullest moment."""
        if len(self.probes) == 1:
            return self._steepest()
        return max(slope for slope, _ in self._lines())

    @property
    def lost_per_sample_bytes(self) -> float:
        """What the allocator holds between live blocks, for each sample.

        It lies among the activations, so it grows with the samples, not with the peak, of which
        parameters and optimizer state are a part that stays.
        """
        return self.probes[-1].waste_bytes / self.probes[-1].size

    def low_bytes(self, size: float) -> float:
        """The peak is at least this: in each phase, the line through the last two probes,
        continued.
        """
        last = self.probes[-1]
        if len(self.probes) == 1 or size <= last.size:
            return float(last.peak_bytes)
        return max(slope * size + fixed for slope, fixed in self._lines())

    def high_bytes(self, size: float) -> float:
        """The peak is at most this."""
        last = self.probes[-1]
        step = last.step_bytes + last.batch_bytes / last.size * (size - last.size)
        return max(self.persistent_bytes + self._steepest() * size, step, last.peak_bytes)

    def largest(self, limit_bytes: float) -> tuple[float, float]:
        """The sizes at which the upper and the lower bound reach a limit: the true one lies
        between.
        """
        last = self.probes[-1]
        room = limit_bytes - self.persistent_bytes
        high = room / self._steepest() if self._steepest() > 0 else math.inf
        if last.batch_bytes:
            high = min(
                high, last.size + (limit_bytes - last.step_bytes) * last.size / last.batch_bytes
            )
        if last.peak_bytes > limit_bytes:
            return max(0.0, high), max(0.0, high)
        low = math.inf
        if len(self.probes) > 1:
            low = min(
                ((limit_bytes - fixed) / slope for slope, fixed in self._lines() if slope > 0),
                default=math.inf,
            )
        return max(high, float(last.size)), max(low, high, float(last.size))

    def jump(self, limit_bytes: float) -> float:
        """The size of the next probe: the upper bound is at 85% of the limit there.

        From the first, small probe that bound is far too high, because gradients count as if they
        grew: there a second guess is taken as well, that activations with their gradients have at
        most three times the forward's bytes, up to 60% of the limit. Where requests are noted 50%
        and 30% will do: they tell the rest.
        """
        sure, only = self.largest(0.85 * limit_bytes)[0], self.probes[0]
        if len(self.probes) > 1:
            return sure
        if only.requests is None:
            return max(sure, self._grown_by_the_forward(0.6 * limit_bytes))
        near = max(
            self.largest(0.5 * limit_bytes)[0], self._grown_by_the_forward(0.3 * limit_bytes)
        )
        return max(near, min(sure, 1.5 * only.size))

    def _grown_by_the_forward(self, limit_bytes: float) -> float:
        only = self.probes[0]
        fixed = self.persistent_bytes + self.gradient_bytes
        sample_bytes = _CAUTION * max(1.0, (only.forward_bytes - self.persistent_bytes) / only.size)
        return min((limit_bytes - fixed) / sample_bytes, self._until_step_is_full(limit_bytes))

    def guess(self, limit_bytes: float) -> float:
        """The likeliest size at a limit.

        The line of the last two probes is right once both lie beyond all knees. Its beginning
        tells: in the fullest moment beyond them gradients are not there yet, so the line, continued
        to size zero, ends well below P plus all gradients. Where it does not, the middle of the
        bounds is taken.
        """
        high, low = self.largest(limit_bytes)
        if math.isinf(low):
            return high
        _, fixed = max(self._lines(), key=lambda line: line[0] * low + line[1])
        if fixed <= self.persistent_bytes + 0.6 * self.gradient_bytes:
            return low
        return (high + low) / 2

    def _until_step_is_full(self, limit_bytes: float) -> float:
        last = self.probes[-1]
        if not last.batch_bytes:
            return math.inf
        return last.size + (limit_bytes - last.step_bytes) * last.size / last.batch_bytes

    def _steepest(self) -> float:
        last = self.probes[-1]
        return (max(last.forward_bytes, last.backward_bytes) - self.persistent_bytes) / last.size

    def _lines(self) -> list[tuple[float, float]]:
        """Slope and beginning of each phase's line through the last two probes."""
        a, b = self.probes[-2:]
        lines = []
        for before, after in zip(a.phases, b.phases, strict=True):
            slope = max(0.0, (after - before) / (b.size - a.size))
            lines.append((slope, after - slope * b.size))
        return lines


@dataclass(frozen=True, slots=True)
class LengthCost:
    """Bytes of one sample by its length: linear + quadratic (attention that keeps its matrix) *
    length.

    Attributes:
        linear_bytes: for each token.
        quadratic_bytes: for each pair of tokens; 0 with flash attention.
    """

    linear_bytes: float
    quadratic_bytes: float

    def __call__(self, length: int) -> float:
        """Bytes of a sample so long."""
        return length * (self.linear_bytes + self.quadratic_bytes * length)


def length_cost(points: Sequence[tuple[int, float]]) -> LengthCost:
    """The cost by length, from bytes of a sample at one or two lengths.

    With one, the cost counts as linear in what is shorter: more than it is where it is quadratic,
        so never too little.
    """
    (length, cost), *shorter_points = sorted(points, reverse=True)
    if not shorter_points:
        return LengthCost(cost / length, 0.0)
    shorter, less = shorter_points[-1]
    quadratic = max(0.0, (cost / length - less / shorter) / (length - shorter))
    return LengthCost(max(0.0, cost / length - quadratic * length), quadratic)
