"""A comparison: the gradient of a few samples beside that of the same samples in two parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vramlens.recovery.losses.loss_calls import LossCalls
from vramlens.recovery.losses.part_losses import Weights, candidates
from vramlens.recovery.memory_errors import OUT_OF_MEMORY, STICKY, kind_of, let_go
from vramlens.recovery.splitting.gradient_runs import (
    TOO_NOISY,
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
from vramlens.recovery.splitting.split_measurements import (
    ROUNDING,
    ROUNDING_OF_OTHERS,
    FewSamples,
    Measurements,
    Rounding,
    SplitCheck,
    WeightedParts,
    few_samples,
)
from vramlens.recovery.splitting.whole_comparison import BatchComparison, WholeComparison
from vramlens.recovery.training.rollback import equal_values

if TYPE_CHECKING:
    import torch

_ORDER_MATTERS = (
    "the order of the samples changes the gradient: the model or the loss uses its own random "
    "numbers, or depends on the order, so a split cannot be checked"
)


class NotCompared(Exception):
    """Nothing could be compared; the text says why."""

    def __init__(self, reason: str, *, undecided: bool = False) -> None:
        super().__init__(reason)
        self.undecided = undecided


class SplitComparison(BatchComparison):
    """Compares gradients of a few samples, dropout off; leaves buffers and random numbers moved."""

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
        base = ROUNDING.get(str(expected.dtype), ROUNDING_OF_OTHERS)
        difference = (actual.double() - expected.double()).norm()
        if not float(difference) <= base * float(expected.double().norm()):
            return name
    return ""
