"""The check on first use: whether the gradient of a split batch equals the gradient of the whole
one.
"""

from __future__ import annotations

import math
import random as random_numbers
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vramlens.recovery.failures import OUT_OF_MEMORY, STICKY, kind_of, let_go
from vramlens.recovery.losses.loss_calls import LossCalls, watched
from vramlens.recovery.losses.part_losses import Loss, Weights, candidates, loss_of
from vramlens.recovery.splitting.batch_parts import Samples, ranges
from vramlens.recovery.splitting.gradient_runs import (
    TOO_NOISY,
    Checked,
    Run,
    floors_of,
    forget,
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
from vramlens.recovery.training.rollback import Buffers, Gradients, RandomState, equal_values

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_MOST_SAMPLES = 16
_CHOICES = 4  # of samples, while those that were chosen tell nothing
_LOSS_BASE = {
    "torch.float64": 1e-9,
    "torch.float32": 1e-5,
}  # of a loss: of the whole batch beside those of its parts
_BASE = {"torch.float64": 1e-10, "torch.float32": 1e-5}
_HALF = 1e-2
_NOISE = 20.0


@dataclass(frozen=True, slots=True)
class SplitCheck:
    """What the check found.

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
    error: float | None
    noise: float | None
    tolerance: float | None
    parameter: str
    samples: int
    weights: Weights
    reason: str = ""
    undecided: bool = False
    paths: tuple[tuple[str, ...], ...] | None = None
    scales: tuple[bool, ...] = ()
    buffers: frozenset[str] = frozenset()
    whole_compared: bool = False


def check_split(what: Checked, samples: Samples, most: int) -> SplitCheck:
    """Compares the gradient of a few samples whole with that of the same in two unequal parts,
    dropout off in both.

    The samples lie evenly in the batch: neighbours may be alike. Where the gradients are equal, the
    loss of the whole batch is compared with those of its parts as well, without gradients, where
    there is room: a mean over something that these few samples have in like number shows there.
    Gradients, buffers and random numbers are left as they were. Half as many samples are taken as
    long as there is no room for them.

    Args:
        most: at most so many samples.
    """
    own = [parameter for _, parameter in what.parameters]
    before, random = Gradients(own), RandomState(what.devices)
    buffers = Buffers(what.model, *(what.values.modules if what.values else ()), all_of_them=True)
    buffers.save()
    if what.values is not None:
        what.values.note()
    count = min(samples.count, most, _MOST_SAMPLES)
    try:
        while count >= 2:
            try:
                return _told(what, samples, count, buffers, random)
            except Exception as error:
                if kind_of(error) != OUT_OF_MEMORY:
                    raise
                let_go(error)
            forget(own)
            what.clean()
            count //= 2
    finally:
        forget(own)
        before.restore()
        buffers.restore()
        random.restore()
        if what.values is not None:
            what.values.restore()
    text = (
        "no two samples fit together, so there was nothing to compare: call guard.verify(batch, loss_fn) with smaller"
        " samples before training, or say guard(verify=False)"
    )
    return _not_compared(text, undecided=True)


def _told(
    what: Checked, samples: Samples, count: int, buffers: Buffers, random: RandomState
) -> SplitCheck:
    """What is found with some samples, else with others: those of which all labels are ignored
    tell nothing.
    """
    found = _compared(what, samples, count, 0, buffers, random)
    if found.undecided and what.scale != 1.0:  # as a scaler's first steps, which overflow
        what = replace(what, scale=1.0)
        found = _compared(what, samples, count, 0, buffers, random)
    for choice in range(1, _CHOICES if samples.free and count < samples.count else 1):
        if not found.undecided:
            break
        found = _compared(what, samples, count, choice, buffers, random)
    return found


def _compared(
    what: Checked, samples: Samples, count: int, choice: int, buffers: Buffers, random: RandomState
) -> SplitCheck:
    middle = -(-2 * count // 3) if count > 2 else 1
    sizes = [middle, count - middle]
    order = sorted(random_numbers.Random(choice).sample(range(samples.count), count))

    def few(start: int, stop: int) -> Any:
        """Some of a few samples, which lie anywhere in the batch: neighbours may be alike."""
        if count == samples.count or not samples.free:
            return samples.part(start, stop)
        return samples.chosen(order[start:stop])

    whole, parts = few(0, count), [few(0, middle), few(middle, count)]
    calls = LossCalls()

    def run(batch: Any, factor: float = 1.0, *, goes_on: bool = False) -> Run:
        if not goes_on:
            buffers.restore()
        random.restore()
        return gradients_of(what, batch, calls, factor)

    try:
        reference = run(whole)
    except Exception as error:
        if kind_of(error) in (OUT_OF_MEMORY, STICKY) or count == samples.count:
            raise
        return _not_compared(fails_on(what.model, samples, count, samples.count, error), count)
    if random.moved():
        return _not_compared(and_norms(what.model, RANDOM), count)
    if name := iterating_norm(what.model):
        return _not_compared(
            f"the spectral norm {name} iterates once with each call, so once for each part", count
        )
    problem = unusable(reference)
    if problem:
        return _not_compared(problem, count, undecided=True)
    after_whole, changed = buffers.values(), frozenset(buffers.changed())
    once = what.values.read() if what.values is not None else []
    again = run(whole)
    if what.values is not None and (name := what.values.differing(once, what.values.read())):
        return _not_compared(
            f"loss_fn changes {name} with each call, so parts would change it once each", count
        )
    if furthest(again.gradients, reference.gradients, what)[0] > TOO_NOISY:
        return _not_compared(
            "the same batch gave another gradient the second time: it cannot be checked", count
        )
    rounded = _rounded(run, samples.chosen(order[::-1]) if samples.free else None, whole)
    floors = floors_of(rounded.gradients, reference.gradients)
    noise = furthest(rounded.gradients, reference.gradients, what, floors)[0]
    try:
        found = [run(part, goes_on=index > 0) for index, part in enumerate(parts)]
    except Exception as error:
        if kind_of(error) in (OUT_OF_MEMORY, STICKY):
            raise
        return _not_compared(fails_on(what.model, samples, sizes[1], count, error), count)
    updated = _updated_otherwise(after_whole, buffers.values())
    loss_noise = abs(rounded.loss - reference.loss) / max(abs(reference.loss), 1e-300)
    base = max((_BASE.get(name, _HALF) for name in reference.dtypes), default=_HALF)
    tolerance = min(max(base, _NOISE * noise), TOO_NOISY)
    if noise > TOO_NOISY:
        text = (
            "the order of the samples changes the gradient: the model or the loss draws random numbers of its own, or"
            " depends on the order, so a split cannot be checked"
        )
        return _not_compared(and_norms(what.model, text), count)
    best: tuple[Weights, float, str] | None = None
    ways: list[tuple[Weights, float]] = []
    for weights, shares in _ways(what, parts, sizes, found, whole, calls):
        if weights.add_up and not all(weighs(one, reference) for one in found):
            continue  # a part without a gradient would add up with anything
        summed = [
            weighted_sum(pair, shares)
            for pair in zip(*(one.gradients for one in found), strict=True)
        ]
        differs, parameter = furthest(summed, reference.gradients, what, floors)
        ways.append((weights, differs))
        if best is None or differs < best[1] / 2:
            best = weights, differs, parameter
    if best is None:  # class weights of labels that are not in the batch
        return _not_compared(BY_CLASS, count)
    weights, differs, parameter = best
    counted = what.count_fn is not None or reference.count is not None
    equal = [one for one, error in ways if error <= tolerance]
    reason = ""
    compared = count == samples.count == 2
    if not differs <= tolerance:
        reason = (
            BY_CLASS
            if calls.class_weights is not None and not counted
            else why_unequal(what.model, counted)
        )
    elif updated:
        reason = f"each part updates the buffer {updated}, which the whole batch updates once"
    elif what.whole and samples.count > 2:
        allowed = max(
            max((_LOSS_BASE.get(name, _HALF) for name in reference.dtypes), default=_HALF),
            tolerance,
        )
        allowed = min(max(allowed, _NOISE * loss_noise), TOO_NOISY)
        ordered = [weights, *(one for one in equal if one is not weights)]
        right = _right_on_the_whole(what, samples, ordered, allowed, buffers, random)
        compared = isinstance(right, Weights)
        if isinstance(right, Weights):
            weights, equal = right, [right]
        elif right:
            reason = f"{right}, though a few samples agree: {means_over(counted)}"
    if reason:
        return SplitCheck(False, differs, noise, tolerance, parameter, count, weights, reason)
    paths = reference.top.paths if reference.top is not None else None
    return SplitCheck(
        True, differs, noise, tolerance, parameter, count, weights,
        paths=paths, scales=_scales(reference, found, sizes), buffers=changed, whole_compared=compared,
    )  # fmt: skip


def _scales(whole: Run, found: list[Run], sizes: list[int]) -> tuple[bool, ...]:
    """For each summand of the loss, whether the divisors of parts differ and add up; empty: its
    graph does not tell.
    """
    together, first, second = whole.top, found[0].top, found[1].top
    if together is None or first is None or second is None or sizes[0] == sizes[1]:
        return ()
    if not together.paths == first.paths == second.paths:
        return ()
    scales = []
    for index in range(len(first.paths)):
        numbers = [top.coefficients[index] for top in (together, first, second)]
        adds_up = all(numbers) and math.isclose(
            1 / numbers[0], 1 / numbers[1] + 1 / numbers[2], rel_tol=1e-5
        )
        grows = adds_up and not math.isclose(numbers[1], numbers[2], rel_tol=1e-6)
        operands = zip(first.operand_sizes[index], second.operand_sizes[index], strict=True)
        scales.append(grows and all(a * sizes[1] == b * sizes[0] for a, b in operands))
    return tuple(scales)


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
        base = _BASE.get(str(expected.dtype), _HALF)
        difference = (actual.double() - expected.double()).norm()
        if not float(difference) <= base * float(expected.double().norm()):
            return name
    return ""


def _rounded(run: Callable[..., Run], turned: Any, whole: Any) -> Run:
    """The same gradient, differently rounded: samples in the opposite order where that can be, a
    third of the loss.
    """
    if turned is not None:
        try:
            return run(turned, 1 / 3)
        except Exception as error:
            if kind_of(error) in (OUT_OF_MEMORY, STICKY):
                raise
            let_go(error)  # it needs this order: sequences that are sorted by length, for example
    return run(whole, 1 / 3)


def _right_on_the_whole(
    what: Checked,
    samples: Samples,
    ways: list[Weights],
    allowed: float,
    buffers: Buffers,
    random: RandomState,
) -> Weights | str:
    """The first weights by which the losses of its parts make that of the batch; else, in words,
    what they make.

    The parts are those that it is to be split into, and three others, of which one has a single
    sample.

    Empty where it could not be tried: there is no room, or the loss needs gradients itself.
    """
    middle = (
        1 + (samples.count - 1) // 2
    )  # one sample alone: by chance it hardly has the average of the others
    divisions = [[(0, 1), (1, middle), (middle, samples.count)]]
    if what.part_size is not None and what.part_size < samples.count:
        divisions.append(ranges(samples.count, what.part_size))
    try:
        whole = _loss_of(what, samples.part(0, samples.count), buffers, random)
        for bounds in divisions:
            parts = [samples.part(start, stop) for start, stop in bounds]
            losses = [_loss_of(what, part, buffers, random) for part in parts]
            sizes = [stop - start for start, stop in bounds]
            ways = [
                way for way in ways if _makes(whole.mean, losses, way.of(parts, sizes), allowed)
            ] if losses[0].count is None else ways  # fmt: skip
            summed = sum(float(loss.value) for loss in losses) / sum(
                float(loss.count or 1) for loss in losses
            )
            if losses[0].count is not None and not abs(float(whole.mean) - summed) <= allowed * abs(
                summed
            ):
                ways = []
            if not ways:
                return f"the loss of the whole batch is {float(whole.mean):.6g}, and its parts do not make it"
    except Exception as error:
        if kind_of(error) == STICKY:
            raise
        if kind_of(error) == OUT_OF_MEMORY:
            what.clean()
        let_go(error)
        return ""
    return ways[0] if math.isfinite(float(whole.mean)) else ""


def _loss_of(what: Checked, batch: Any, buffers: Buffers, random: RandomState) -> Loss:
    """The loss of a batch without gradients and dropout."""
    buffers.restore()
    random.restore()
    with torch.no_grad(), watched():
        loss = loss_of(what.loss_fn(what.model, batch))
    return Loss(loss.value.detach(), loss.count)


def _makes(whole: Any, losses: list[Loss], shares: list[Any], allowed: float) -> bool:
    """Whether the losses of parts, each by its share, make that of the whole."""
    if not math.isfinite(float(whole)):
        return True  # nothing to compare
    there = [
        float(loss.value) * float(share)
        for loss, share in zip(losses, shares, strict=True)
        if float(share)
    ]
    return abs(float(whole) - sum(there)) <= allowed * max(abs(float(whole)), sum(map(abs, there)))


def _ways(
    what: Checked,
    parts: list[Any],
    sizes: list[int],
    found: list[Run],
    whole: Any,
    calls: LossCalls,
) -> Iterator[tuple[Weights, list[float]]]:
    """The weights that may be right, with the share of each part."""
    if found[0].count is not None:
        total = sum(run.count or 0.0 for run in found)
        yield Weights("sum and count"), [(run.count or 0.0) / total for run in found]
        return
    ways = (
        candidates(whole, calls) if what.count_fn is None else [Weights("count_fn", what.count_fn)]
    )
    for weights in ways:
        yield weights, [float(share) for share in weights.of(parts, sizes)]


def _not_compared(reason: str, samples: int = 0, *, undecided: bool = False) -> SplitCheck:
    return SplitCheck(
        False, None, None, None, "", samples, Weights("samples"), reason, undecided=undecided
    )
