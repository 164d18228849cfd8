"""What a comparison works on and what it gives: a few samples, their runs, the answer."""

from __future__ import annotations

import random as random_numbers
from dataclasses import dataclass
from typing import Any

from vramlens.recovery.losses.part_losses import BY_SAMPLES, Weights
from vramlens.recovery.splitting.batch_parts import BatchSamples
from vramlens.recovery.splitting.gradient_runs import TOO_NOISY, GradientRun

_LOSS_ROUNDING = {"torch.float64": 1e-9, "torch.float32": 1e-5}
"""Of a loss: that of the whole batch beside those of its parts."""
ROUNDING = {"torch.float64": 1e-10, "torch.float32": 1e-5}
ROUNDING_OF_OTHERS = 1e-2
_NOISE = 20.0


@dataclass(frozen=True, slots=True)
class SplitCheck:
    """The answer of a check.

    Attributes:
        equal: whether the gradients are equal within ``tolerance``.
        error: the largest difference of a parameter's gradient, its norm over the gradient's norm;
            None: not compared.
        noise: the same between the whole batch and the whole batch in the opposite order: rounding
            alone.
        tolerance: up to which a difference counts as rounding.
        parameter: where the largest difference is.
        samples: how many samples were compared, in two parts of unequal size.
        weights: the weights that make them equal.
        paths: the operations at the top of the loss, as its graph tells, one tuple a summand; None:
            it does not tell.
        buffers: those that the whole batch changes; parts leave them as it does.
        whole_compared: whether the loss of the whole batch was compared with that of the parts that
            it is split into.
        scales: for each summand, whether its divisor was seen to grow with the samples of a part.
        undecided: whether nothing was compared for a reason of this batch: no room, or a loss that
            is not finite. That takes nothing back that an earlier check has proven.
        reason: why they are not equal, or could not be compared; empty where they are.
    """

    equal: bool
    error: float | None = None
    noise: float | None = None
    tolerance: float | None = None
    parameter: str = ""
    samples: int = 0
    weights: Weights = BY_SAMPLES
    reason: str = ""
    undecided: bool = False
    paths: tuple[tuple[str, ...], ...] | None = None
    scales: tuple[bool, ...] = ()
    buffers: frozenset[str] = frozenset()
    whole_compared: bool = False


@dataclass(frozen=True, slots=True)
class FewSamples:
    """Some samples of a batch, which lie anywhere in it: neighbours may be alike.

    Attributes:
        order: their numbers.
        middle: how many of them the first of two unequal parts has.
    """

    samples: BatchSamples
    order: list[int]
    middle: int

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.order)

    @property
    def sizes(self) -> list[int]:
        """Samples in each of the two parts."""
        return [self.middle, self.count - self.middle]

    def batch(self, start: int, stop: int) -> Any:
        """Those from ``start`` to before ``stop``, as a batch."""
        if self.count == self.samples.count or not self.samples.free:
            return self.samples.part(start, stop)
        return self.samples.chosen(self.order[start:stop])

    def reversed(self) -> Any | None:
        """All of them in the opposite order; None where only the user's function can split."""
        return self.samples.chosen(self.order[::-1]) if self.samples.free else None


def few_samples(samples: BatchSamples, count: int, choice: int) -> FewSamples:
    """So many samples of a batch, others for each choice."""
    numbers = random_numbers.Random(choice).sample(range(samples.count), count)
    return FewSamples(samples, sorted(numbers), -(-2 * count // 3) if count > 2 else 1)


@dataclass(frozen=True, slots=True)
class Rounding:
    """How far rounding alone moves the gradient and the loss.

    Attributes:
        floors: below which norm each parameter's gradient is nothing but rounding.
        noise: the largest difference of a parameter's gradient; ``of_loss``: that of the loss.
    """

    floors: list[float]
    noise: float
    of_loss: float

    def tolerance(self, run: GradientRun) -> float:
        """Up to which a difference of gradients counts as rounding."""
        base = _largest(ROUNDING, run)
        return min(max(base, _NOISE * self.noise), TOO_NOISY)

    def loss_tolerance(self, run: GradientRun) -> float:
        """The same of losses."""
        base = max(_largest(_LOSS_ROUNDING, run), self.tolerance(run))
        return min(max(base, _NOISE * self.of_loss), TOO_NOISY)


@dataclass(frozen=True, slots=True)
class WeightedParts:
    """The parts' gradients, added up by some weights, beside the gradient of the whole.

    Attributes:
        error: the largest difference; ``parameter``: where it is.
    """

    weights: Weights
    error: float
    parameter: str


@dataclass(frozen=True, slots=True)
class Measurements:
    """What the runs of a few samples gave.

    Attributes:
        reference: the run of all of them at once; ``runs``: those of the two parts.
        ways: the parts added up by each of the weights that may be right.
        changed_buffers: those that the whole changes.
        updated_buffer: one that parts leave otherwise than the whole does; empty: there is none.
    """

    small_batch: FewSamples
    reference: GradientRun
    runs: list[GradientRun]
    rounding: Rounding
    ways: list[WeightedParts]
    changed_buffers: frozenset[str]
    updated_buffer: str


def _largest(rounding: dict[str, float], run: GradientRun) -> float:
    """The coarsest rounding of a run's types."""
    by_type = [rounding.get(name, ROUNDING_OF_OTHERS) for name in run.dtypes]
    return max(by_type, default=ROUNDING_OF_OTHERS)
