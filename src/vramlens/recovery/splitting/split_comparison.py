"""A comparison: the gradient of a few samples beside that of the same samples in two parts."""

from __future__ import annotations

import math
import random as random_numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vramlens.recovery.losses.loss_calls import LossCalls
from vramlens.recovery.losses.part_losses import BY_SAMPLES, Weights, candidates
from vramlens.recovery.memory_errors import OUT_OF_MEMORY, STICKY, kind_of, let_go
from vramlens.recovery.splitting.batch_parts import BatchSamples
from vramlens.recovery.splitting.gradient_runs import (
    TOO_NOISY,
    CheckedTraining,
    GradientRun,
    floors_of,
    furthest,
    gradients_of,
    unusable,
    weighs,
    weighted_sum,
)
from vramlens.recovery.splitting.refusal_words import (
    BY_CLASS,
    RANDOM,
    and_norms,
    fails_on,
    iterating_norm,
    means_over,
    why_unequal,
)
from vramlens.recovery.splitting.whole_comparison import WholeComparison
from vramlens.recovery.training.rollback import Buffers, RandomState, equal_values

if TYPE_CHECKING:
    import torch

_LOSS_ROUNDING = {"torch.float64": 1e-9, "torch.float32": 1e-5}
"""Of a loss: that of the whole batch beside those of its parts."""
_ROUNDING = {"torch.float64": 1e-10, "torch.float32": 1e-5}
_ROUNDING_OF_OTHERS = 1e-2
_NOISE = 20.0
_ORDER_MATTERS = (
    "the order of the samples changes the gradient: the model or the loss uses its own random "
    "numbers, or depends on the order, so a split cannot be checked"
)


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


class NotCompared(Exception):
    """Nothing could be compared; the text says why."""

    def __init__(self, reason: str, *, undecided: bool = False) -> None:
        super().__init__(reason)
        self.undecided = undecided


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
        base = _largest(_ROUNDING, run)
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


class SplitComparison:
    """Compares gradients of a few samples, dropout off; leaves buffers and random numbers moved.

    Args:
        buffers, random: as they were before, saved.
    """

    def __init__(
        self,
        training: CheckedTraining,
        samples: BatchSamples,
        buffers: Buffers,
        random: RandomState,
    ) -> None:
        self._training = training
        self._samples = samples
        self._buffers = buffers
        self._random = random
        self._calls = LossCalls()

    def compare(self, count: int, choice: int) -> SplitCheck:
        """The check made with so many samples."""
        self._calls = LossCalls()
        try:
            return self._judged(self._measured(few_samples(self._samples, count, choice)))
        except NotCompared as error:
            return SplitCheck(False, samples=count, reason=str(error), undecided=error.undecided)

    def _measured(self, few: FewSamples) -> Measurements:
        """Everything that the answer follows from; raises NotCompared where nothing does."""
        batch = few.batch(0, few.count)
        parts = [few.batch(0, few.middle), few.batch(few.middle, few.count)]
        reference = self._reference(batch, few)
        self._refuse_unrepeatable(reference)
        buffers_after = self._buffers.values()
        changed_buffers = frozenset(self._buffers.changed())
        self._refuse_changing(batch, reference)
        rounding = self._rounding(batch, few, reference)
        runs = self._runs_of(parts, few)
        updated_buffer = _updated_otherwise(buffers_after, self._buffers.values())
        if rounding.noise > TOO_NOISY:
            raise NotCompared(and_norms(self._training.model, _ORDER_MATTERS))
        ways = [
            self._weighted(weights, shares, runs, reference, rounding)
            for weights, shares in self._ways(batch, parts, few.sizes, runs)
            # A part without a gradient would add up with anything.
            if not weights.add_up or all(weighs(run, reference) for run in runs)
        ]
        if not ways:  # class weights of labels that are not in the batch
            raise NotCompared(BY_CLASS)
        return Measurements(
            small_batch=few,
            reference=reference,
            runs=runs,
            rounding=rounding,
            ways=ways,
            changed_buffers=changed_buffers,
            updated_buffer=updated_buffer,
        )

    def _judged(self, measured: Measurements) -> SplitCheck:
        small_batch, reference = measured.small_batch, measured.reference
        best = _best(measured.ways)
        tolerance = measured.rounding.tolerance(reference)
        unequal = SplitCheck(
            False,
            error=best.error,
            noise=measured.rounding.noise,
            tolerance=tolerance,
            parameter=best.parameter,
            samples=small_batch.count,
            weights=best.weights,
        )
        is_counted = self._training.count_fn is not None or reference.count is not None
        if not best.error <= tolerance:
            return replace(unequal, reason=self._why_unequal(is_counted))
        if measured.updated_buffer:
            reason = (
                f"each part updates the buffer {measured.updated_buffer}, which the whole batch"
                " updates once"
            )
            return replace(unequal, reason=reason)
        check = replace(
            unequal,
            equal=True,
            paths=reference.top.paths if reference.top is not None else None,
            scales=_scales(reference, measured.runs, small_batch.sizes),
            buffers=measured.changed_buffers,
            whole_compared=small_batch.count == self._samples.count == 2,
        )
        answer = self._fitting_whole(measured, best.weights, tolerance)
        if isinstance(answer, Weights):
            return replace(check, weights=answer, whole_compared=True)
        if answer:
            reason = f"{answer}, although a few samples agree: {means_over(is_counted)}"
            return replace(unequal, reason=reason)
        return check

    def _fitting_whole(
        self, measured: Measurements, best: Weights, tolerance: float
    ) -> Weights | str:
        """The weights that fit the whole batch, too, or why none do; empty: it is not compared."""
        if not self._training.compares_whole or self._samples.count <= 2:
            return ""
        equal_ways = [way.weights for way in measured.ways if way.error <= tolerance]
        other_ways = [weights for weights in equal_ways if weights is not best]
        comparison = WholeComparison(self._training, self._samples, self._buffers, self._random)
        return comparison.fitting(
            [best, *other_ways], measured.rounding.loss_tolerance(measured.reference)
        )

    def _run(self, batch: Any, factor: float = 1.0, *, goes_on: bool = False) -> GradientRun:
        if not goes_on:
            self._buffers.restore()
        self._random.restore()
        return gradients_of(self._training, batch, self._calls, factor)

    def _reference(self, batch: Any, few: FewSamples) -> GradientRun:
        """The run of all samples at once."""
        count = self._samples.count
        try:
            return self._run(batch)
        except Exception as error:
            if kind_of(error) in (OUT_OF_MEMORY, STICKY) or few.count == count:
                raise
            reason = fails_on(self._training.model, self._samples, few.count, count, error)
        raise NotCompared(reason)

    def _refuse_unrepeatable(self, reference: GradientRun) -> None:
        """Raises NotCompared where parts cannot do what the whole does, or it tells nothing."""
        model = self._training.model
        if self._random.moved():
            raise NotCompared(and_norms(model, RANDOM))
        name = iterating_norm(model)
        if name:
            raise NotCompared(
                f"the spectral norm {name} iterates once per call, so once for each part"
            )
        problem = unusable(reference)
        if problem:
            raise NotCompared(problem, undecided=True)

    def _refuse_changing(self, batch: Any, reference: GradientRun) -> None:
        """Raises NotCompared where a second run of the same samples is another."""
        values = self._training.values
        before = values.read() if values is not None else []
        repeated = self._run(batch)
        name = values.differing(before, values.read()) if values is not None else ""
        if name:
            raise NotCompared(
                f"loss_fn changes {name} with each call, so parts would change it once each"
            )
        if furthest(repeated.gradients, reference.gradients, self._training)[0] > TOO_NOISY:
            raise NotCompared(
                "the same batch gave a different gradient the second time, so a split cannot "
                "be checked"
            )

    def _rounding(self, batch: Any, few: FewSamples, reference: GradientRun) -> Rounding:
        rounded = self._rounded(batch, few.reversed())
        floors = floors_of(rounded.gradients, reference.gradients)
        noise, _ = furthest(rounded.gradients, reference.gradients, self._training, floors)
        of_loss = abs(rounded.loss - reference.loss) / max(abs(reference.loss), 1e-300)
        return Rounding(floors, noise, of_loss)

    def _rounded(self, batch: Any, reversed_batch: Any | None) -> GradientRun:
        """The same gradient, differently rounded: samples in the opposite order where that can
        be, a third of the loss.
        """
        if reversed_batch is not None:
            try:
                return self._run(reversed_batch, 1 / 3)
            except Exception as error:
                if kind_of(error) in (OUT_OF_MEMORY, STICKY):
                    raise
                # It needs this order: sequences that are sorted by length, for example.
                let_go(error)
        return self._run(batch, 1 / 3)

    def _runs_of(self, parts: list[Any], few: FewSamples) -> list[GradientRun]:
        try:
            return [self._run(part, goes_on=index > 0) for index, part in enumerate(parts)]
        except Exception as error:
            if kind_of(error) in (OUT_OF_MEMORY, STICKY):
                raise
            model, (_, smaller) = self._training.model, few.sizes
            reason = fails_on(model, self._samples, smaller, few.count, error)
        raise NotCompared(reason)

    def _ways(
        self, batch: Any, parts: list[Any], sizes: list[int], runs: list[GradientRun]
    ) -> Iterator[tuple[Weights, list[float]]]:
        """The weights that may be right, with the share of each part."""
        if runs[0].count is not None:
            counts = [run.count or 0.0 for run in runs]
            yield Weights("sum and count"), [count / sum(counts) for count in counts]
            return
        count_fn = self._training.count_fn
        ways = [Weights("count_fn", count_fn)] if count_fn else candidates(batch, self._calls)
        for weights in ways:
            yield weights, [float(share) for share in weights.of(parts, sizes)]

    def _weighted(
        self,
        weights: Weights,
        shares: list[float],
        runs: list[GradientRun],
        reference: GradientRun,
        rounding: Rounding,
    ) -> WeightedParts:
        gradients = zip(*(run.gradients for run in runs), strict=True)
        summed = [weighted_sum(of_parts, shares) for of_parts in gradients]
        error, parameter = furthest(summed, reference.gradients, self._training, rounding.floors)
        return WeightedParts(weights, error, parameter)

    def _why_unequal(self, is_counted: bool) -> str:
        if self._calls.class_weights is not None and not is_counted:
            return BY_CLASS
        return why_unequal(self._training.model, is_counted)


def _largest(rounding: dict[str, float], run: GradientRun) -> float:
    """The coarsest rounding of a run's types."""
    by_type = [rounding.get(name, _ROUNDING_OF_OTHERS) for name in run.dtypes]
    return max(by_type, default=_ROUNDING_OF_OTHERS)


def _best(ways: list[WeightedParts]) -> WeightedParts:
    """The first of them, unless a later one is twice as close."""
    best = ways[0]
    for way in ways[1:]:
        if way.error < best.error / 2:
            best = way
    return best


def _scales(whole: GradientRun, parts: list[GradientRun], sizes: list[int]) -> tuple[bool, ...]:
    """For each summand of the loss, whether the divisors of parts differ and add up; empty: its
    graph does not tell.
    """
    together, first, second = whole.top, parts[0].top, parts[1].top
    if together is None or first is None or second is None or sizes[0] == sizes[1]:
        return ()
    if not together.paths == first.paths == second.paths:
        return ()
    return tuple(
        _divisors_add_up(together.coefficients[index], first.coefficients[index], coefficient)
        and _grows_with_size(first.operand_sizes[index], second.operand_sizes[index], sizes)
        for index, coefficient in enumerate(second.coefficients)
    )


def _divisors_add_up(whole: float, first: float, second: float) -> bool:
    """Whether parts are divided by different numbers that together make the whole's."""
    if not (whole and first and second):
        return False
    adds_up = math.isclose(1 / whole, 1 / first + 1 / second, rel_tol=1e-5)
    return adds_up and not math.isclose(first, second, rel_tol=1e-6)


def _grows_with_size(first: Sequence[int], second: Sequence[int], sizes: list[int]) -> bool:
    return all(a * sizes[1] == b * sizes[0] for a, b in zip(first, second, strict=True))


def _updated_otherwise(whole: dict[str, torch.Tensor], parts: dict[str, torch.Tensor]) -> str:
    """The name of a buffer that parts leave otherwise than the whole batch does; empty: there is
    none.
    """
    for name, expected in whole.items():
        actual = parts.get(name)
        if actual is None or actual.shape != expected.shape:
            return name
        if equal_values(actual, expected):
            continue
        if not expected.dtype.is_floating_point:
            return name
        base = _ROUNDING.get(str(expected.dtype), _ROUNDING_OF_OTHERS)
        difference = (actual.double() - expected.double()).norm()
        if not float(difference) <= base * float(expected.double().norm()):
            return name
    return ""
